"""What a chat template takes: short conversations tell it, in which a word must be found again."""

import json
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from jinja2 import Environment, TemplateSyntaxError, meta, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser

from tiny_llm_lab.runtime.models.config.model_config import one_line
from tiny_llm_lab.runtime.models.text.ending import TooLongError

LEVELS: Final = ("none", "minimal", "low", "medium", "high", "xhigh", "max")  # of reasoning_effort
_VARIABLES: Final = frozenset({"enable_thinking", "preserve_thinking", "reasoning_effort"})
_WORDS: Final = ("quagga", "okapi", "axolotl", "numbat")
_ROLES: Final = ("system", "assistant", "user")
_NO_PARAMETERS: Final = {"type": "object", "properties": {}}

Turn = dict[str, Any]
Render = Callable[..., str]  # turns, with tools and variables, as text; raises what a template may


@dataclass(frozen=True)
class TemplateFacts:
    """What `conversation_for` needs to know of a template."""

    complaint: str = ""  # why no chat is possible
    in_parts: frozenset[str] = frozenset()  # roles whose content must be a list of parts
    system: Literal["anywhere", "first", "nowhere"] = "anywhere"  # where system turns may be
    needs_user: bool = False  # a conversation without a user's turn is refused
    must_alternate: bool = False  # two turns of a user in a row are refused
    has_tools: bool = False  # it shows tools, calls and results
    arguments: Literal["any", "object", "text"] = "any"  # what the arguments of a call must be
    has_many_calls: bool = True  # a turn may call several tools
    has_words_with_calls: bool = True  # a turn that calls a tool may have a text as well
    variables: frozenset[str] = frozenset()  # those of `_VARIABLES` that it reads
    efforts: tuple[str, ...] = ()  # the `LEVELS` that it takes as reasoning_effort

    def line(self) -> str:
        """All of it, for a person."""
        if self.complaint:
            return f"not usable ({self.complaint})"
        content = f"parts for {', '.join(sorted(self.in_parts))}" if self.in_parts else "text"
        tools = f"arguments of calls: {self.arguments}" if self.has_tools else "tools as text"
        said = [f"content: {content}", f"system turns: {self.system}", tools]
        for is_said, words in (
            (self.needs_user, "a user's turn is needed"),
            (self.must_alternate, "turns must alternate"),
            (self.has_tools and not self.has_many_calls, "one call a turn"),
            (self.has_tools and not self.has_words_with_calls, "no text beside a call"),
            (bool(self.variables), f"reads {', '.join(sorted(self.variables))}"),
            (bool(self.efforts), f"efforts: {', '.join(self.efforts)}"),
        ):
            said += [words] if is_said else []
        return " · ".join(said)

    def effort(self, level: str) -> str | None:
        """The level nearest to `level` that the template takes, the higher one of two; None without any."""
        place = LEVELS.index(level)
        if level == "none" and "enable_thinking" in self.variables:
            return level if level in self.efforts else None
        taken = [each for each in self.efforts if each == level or each != "none"]
        ranks = {each: (abs(LEVELS.index(each) - place), -LEVELS.index(each)) for each in taken}
        return min(ranks, key=ranks.__getitem__, default=None)


def look_at(render: Render, sources: Iterable[str]) -> TemplateFacts:
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
    return TemplateFacts(
        in_parts=frozenset(look.in_parts),
        system="anywhere" if is_free else "first" if has_system else "nowhere",
        needs_user=has_system and not look.shows([system]),
        must_alternate=not look.shows([look.turn("user", _WORDS[0]), asked]),
        variables=variables,
        efforts=tuple(
            level
            for level in LEVELS
            if "reasoning_effort" in variables and look.shows([asked], reasoning_effort=level)
        ),
        **calls,
    )


def _calls(look: "_Look") -> dict[str, Any]:
    """What is known of tools."""
    asked, words = look.turn("user", "hi"), _WORDS
    arguments: dict[str, Any] = {"object": {"a": words[0]}, "text": json.dumps({"a": words[0]})[:-1]}
    results = {"tool": False}
    taken = []
    for kind, value in arguments.items():
        called = look.turn("assistant", "") | {"tool_calls": [_call(value)]}
        results["tool"] = results["tool"] or look.learn_form("tool", [asked, called], [])
        if look.shows([asked, called], words[:1]):
            taken.append(kind)
    tool = {
        "type": "function",
        "function": {"name": words[3], "description": "a", "parameters": _NO_PARAMETERS},
    }
    if not taken or not results["tool"] or not look.shows([asked], [words[3]], tools=[tool]):
        return {}
    calls = [
        _call(arguments[taken[0]]),
        _call(json.loads(json.dumps(arguments[taken[0]]).replace(*words[:2]))),
    ]
    both = look.turn("assistant", "") | {"tool_calls": calls}
    said = look.turn("assistant", words[2]) | {"tool_calls": calls[:1]}
    return {
        "has_tools": True,
        "arguments": "any" if len(taken) == 2 else taken[0],
        "has_many_calls": look.shows([asked, both], words[:2]),
        "has_words_with_calls": look.shows([asked, said], [words[0], words[2]]),
    }


def _call(arguments: object) -> dict[str, Any]:
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
            self.reason = one_line(error)
            return False
        return all(word in text for word in words)


def turn_of(role: str, text: str, in_parts: Collection[str]) -> Turn:
    """A turn whose content is a list of parts for the roles `in_parts`."""
    return {"role": role, "content": [{"type": "text", "text": text}] if role in in_parts else text}


def _undeclared(sources: Iterable[str]) -> set[str]:
    """The variables that templates read."""
    environment = Environment(extensions=["jinja2.ext.loopcontrols", _Generation])
    try:
        return {
            name for source in sources for name in meta.find_undeclared_variables(environment.parse(source))
        }
    except TemplateSyntaxError:
        return set()


class _Generation(Extension):
    """The tag {% generation %} of transformers, around what a model wrote."""

    tags: set[str] = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """See `Extension.parse`."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)
