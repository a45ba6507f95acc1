"""What a chat template takes: short conversations tell it, in which a word must be found again."""

import ctypes
import json
import re
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from typing import Any, Final, Literal

from jinja2 import Environment, TemplateSyntaxError, meta

from tiny_llm_lab.runtime.models.config.fields import one_line
from tiny_llm_lab.types.sampling import THINK, THINK_CLOSE, THINK_END


class TooLongError(Exception):
    """Code did not end in time."""

    def __str__(self) -> str:
        return "it does not end"


@contextmanager
def ended_after(seconds: float) -> Iterator[None]:
    """Raise TooLongError within the block, in this thread, when it takes longer."""
    thread = ctypes.c_ulong(threading.get_ident())
    late = ctypes.py_object(TooLongError)
    timer = threading.Timer(seconds, ctypes.pythonapi.PyThreadState_SetAsyncExc, (thread, late))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


LEVELS: Final = ("none", "minimal", "low", "medium", "high", "xhigh", "max")  # of reasoning_effort
_VARIABLES: Final = frozenset({"enable_thinking", "preserve_thinking", "reasoning_effort"})
_WORDS: Final = ("quagga", "okapi", "axolotl", "numbat")
_ROLES: Final = ("system", "assistant", "user")

# How a turn writes its calls, in the order in which we look: Qwen's tags, Hermes' JSON in tags, Llama's JSON.
_CALLS: Final = {
    "qwen3_coder": ("<function=",),
    "hermes": ("<tool_call>", '"name"', '"arguments"'),
    "llama3_json": ('"name"', '"parameters"'),
}
Turn = dict[str, Any]
Render = Callable[..., str]  # turns, with tools and variables, as text; raises what a template may


@dataclass(frozen=True)
class TemplateFacts:
    """What `conversation_for` needs to know of a template."""

    complaint: str = field(default="", repr=False)  # why no chat is possible
    in_parts: frozenset[str] = frozenset()  # roles whose content must be a list of parts
    system: Literal["anywhere", "first", "nowhere"] = "anywhere"  # where system turns may be
    needs_user: bool = False  # a conversation without a user's turn is refused
    must_alternate: bool = False  # two turns of a user in a row are refused
    has_tools: bool = False  # it shows tools, calls and results
    arguments: Literal["any", "object", "text"] = "any"  # what the arguments of a call must be
    calls: str = "hermes"  # the parser, by vLLM's name, of the calls that it writes
    has_many_calls: bool = True  # a turn may call several tools
    has_words_with_calls: bool = True  # a turn that calls a tool may have a text as well
    variables: frozenset[str] = frozenset()  # those of `_VARIABLES` that it reads
    efforts: tuple[str, ...] = ()  # the `LEVELS` that it takes as reasoning_effort
    # What it writes before and behind the thoughts of an answer.
    thoughts: tuple[str, str] = field(default=(f"{THINK}\n", THINK_CLOSE), repr=False)

    def line(self) -> str:
        """All of it, for a person."""
        if self.complaint:
            return f"not usable ({self.complaint})"
        told = {each.name: getattr(self, each.name) for each in fields(self) if each.repr}
        return " · ".join(f"{name.replace('_', ' ')}: {_said(value)}" for name, value in told.items())

    def effort(self, level: str) -> str | None:
        """The level nearest to `level` that the template takes, the higher one of two; None without any."""
        place = LEVELS.index(level)
        if level == "none" and "enable_thinking" in self.variables:
            return level if level in self.efforts else None
        taken = [each for each in self.efforts if each == level or each != "none"]
        ranks = {each: (abs(LEVELS.index(each) - place), -LEVELS.index(each)) for each in taken}
        return min(ranks, key=ranks.__getitem__, default=None)


def look_at(render: Render, sources: Sequence[str]) -> TemplateFacts:
    """The facts of a template, whose texts are `sources`. Raises TooLongError if it does not end."""
    look = _Look(render)
    if not look.learn_form("user", [], []):
        return TemplateFacts(complaint=look.reason or "it does not show what a user says")
    hi = look.turn("user", "hi")
    has_system = look.learn_form("system", [], [hi])
    look.learn_form("assistant", [hi], [hi])
    system, answer, asked = (look.turn(*each) for each in zip(_ROLES, _WORDS, strict=False))
    again = look.turn("system", _WORDS[3])
    is_free = look.shows([system, again, asked]) and look.shows([asked, answer, again, asked])
    variables, calls = _VARIABLES & _undeclared(sources), _calls(look)
    levels = LEVELS if "reasoning_effort" in variables else ()
    return TemplateFacts(
        in_parts=frozenset(look.in_parts),
        system="anywhere" if is_free else "first" if has_system else "nowhere",
        needs_user=has_system and not look.shows([system]),
        must_alternate=not look.shows([look.turn("user", _WORDS[0]), asked]),
        variables=variables,
        efforts=tuple(each for each in levels if look.shows([asked], reasoning_effort=each)),
        thoughts=look.thoughts([asked, answer], TemplateFacts.thoughts),
        **calls,
    )


def _calls(look: "_Look") -> dict[str, Any]:
    """What is known of tools."""
    asked, silent = look.turn("user", "hi"), look.turn("assistant", "")
    first, second, text, name = _WORDS
    calling = {kind: silent | {"tool_calls": [_call(kind, first)]} for kind in ("object", "text")}
    kinds = [kind for kind, turn in calling.items() if look.shows([asked, turn], [first])]
    tool = {"name": name, "description": "a", "parameters": {"type": "object", "properties": {}}}
    if not kinds or not look.shows([asked], [name], tools=[{"type": "function", "function": tool}]):
        return {}
    calls = [_call(kinds[0], word) for word in (first, second)]
    one = [asked, silent | {"tool_calls": calls[:1]}]
    turn = look.turn("assistant", text) | {"tool_calls": calls[:1]}
    return {
        "has_tools": look.learn_form("tool", one, []),
        "arguments": "any" if len(kinds) == 2 else kinds[0],
        "calls": next((name for name, marks in _CALLS.items() if look.shows(one, marks)), "hermes"),
        "has_many_calls": look.shows([asked, silent | {"tool_calls": calls}], [first, second]),
        "has_words_with_calls": look.shows([asked, turn], [first, text]),
    }


def _call(kind: str, word: str) -> dict[str, Any]:
    """A call with arguments of a kind; a text that was cut is no JSON."""
    arguments: Any = {"a": word} if kind == "object" else f'{{"a": "{word}'
    return {"id": "call_1", "type": "function", "function": {"name": "okay", "arguments": arguments}}


class _Look:
    """Conversations in a template, in the form that is known so far."""

    def __init__(self, render: Render) -> None:
        self._render = render
        self.in_parts: set[str] = set()
        self.reason = ""  # why the template refused a conversation

    def turn(self, role: str, text: str) -> Turn:
        """A turn."""
        return turn_of(role, text, self.in_parts)

    def learn_form(self, role: str, before: Sequence[Turn], after: Sequence[Turn]) -> bool:
        """Whether `role` may speak between the others, and if so, in which form."""
        for parts in (self.in_parts, self.in_parts | {role}):
            if self.shows([*before, turn_of(role, _WORDS[2], parts), *after], _WORDS[2:3]):
                self.in_parts = {*parts}
                return True
        return False

    def shows(self, turns: Sequence[Turn], words: Sequence[str] = (), **given: Any) -> bool:
        """Whether the words are shown; without any, those of the turns."""
        words = words or [word for word in _WORDS if word in json.dumps(turns)]
        try:
            text = self._render(turns, add_generation_prompt=True, **given)
        except TooLongError:
            raise
        except Exception as error:  # in any way that Jinja or the template's own code can
            self.reason = self.reason or one_line(error)
            return False
        return all(word in text for word in words)

    def thoughts(self, turns: Sequence[Turn], usual: tuple[str, str]) -> tuple[str, str]:
        """What is before and behind the thoughts of the last of `turns`; `usual` if they are not shown."""
        last = turns[-1] | {"reasoning_content": _WORDS[3]}
        if not self.shows([*turns[:-1], last], [THINK, _WORDS[3], THINK_END]):
            return usual
        before, _, rest = self._render([*turns[:-1], last], add_generation_prompt=False).partition(_WORDS[3])
        found = before[before.rfind(THINK) :], rest.partition(_WORDS[1])[0]
        return found if before.count(THINK) == found[1].count(THINK_END) == 1 else usual


def turn_of(role: str, text: str, in_parts: Collection[str]) -> Turn:
    """A turn whose content is a list of parts for the roles `in_parts`."""
    return {"role": role, "content": [{"type": "text", "text": text}] if role in in_parts else text}


def _undeclared(sources: Sequence[str]) -> set[str]:
    """The variables that templates read; with tags of transformers' own, all names that they have."""
    environment = Environment(extensions=["jinja2.ext.loopcontrols"])
    try:
        return set().union(*(meta.find_undeclared_variables(environment.parse(each)) for each in sources))
    except TemplateSyntaxError:
        return {name for each in sources for name in re.findall(r"\w+", each)}


def _said(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(sorted(value)) or "none" if isinstance(value, frozenset | tuple) else str(value)
