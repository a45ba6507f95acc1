"""Gives a conversation the form in which a chat template takes it, without losing a word."""

import json
import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Final

from tiny_llm_lab.runtime.models.text.template_facts import TemplateFacts, Turn, turn_of

PLACE_DIGITS: Final = 4  # of a picture's number behind the mark of its place


def conversation_for(
    facts: TemplateFacts, messages: Sequence[Mapping[str, object]], picture_mark: str = ""
) -> list[Turn]:
    """`messages`, whose contents are text, as the template with `facts` takes them.

    A turn that the template takes as it is stays so. `picture_mark` and a number are a picture in a text.
    """
    turns = _with_system(facts, [dict(each) for each in messages])
    turns = [*_with_calls(facts, turns)]
    if facts.must_alternate:
        turns = _joined(turns)
    formed = [each | turn_of(each["role"], each["content"], facts.in_parts) for each in turns]
    if not picture_mark:
        return formed
    shown = [_with_pictures(each["content"], picture_mark) for each in turns]
    return [each | {"content": parts} if parts else each for each, parts in zip(formed, shown, strict=True)]


def _with_pictures(text: str, mark: str) -> list[Turn]:
    """The parts of a text with pictures; none of one without."""
    pieces = re.split(rf"{mark}(\d{{{PLACE_DIGITS}}})", text)
    texts = [{"type": "text", "text": each} if each else {} for each in pieces[::2]]
    numbered = [{"type": "image", "image": int(each)} for each in pieces[1::2]]
    both = [part for pair in zip(texts, [*numbered, {}], strict=True) for part in pair if part]
    return both if numbered else []


def pictures_of(turns: Sequence[Turn]) -> tuple[int, ...]:
    """The numbers of the pictures in `turns`, in their order."""
    parts = (part for each in turns if isinstance(each["content"], list) for part in each["content"])
    return tuple(part["image"] for part in parts if "image" in part)


def with_end(turn: Turn, end: str) -> Turn:
    """`turn` with `end` behind its text."""
    content = turn["content"]
    if isinstance(content, str):
        return turn | {"content": content + end}
    *before, last = content
    if "text" not in last:
        return turn | {"content": [*content, {"type": "text", "text": end}]}
    return turn | {"content": [*before, last | {"text": last["text"] + end}]}


def _with_system(facts: TemplateFacts, turns: list[Turn]) -> list[Turn]:
    num_first = next((n for n, each in enumerate(turns) if each["role"] != "system"), len(turns))
    if facts.needs_user and num_first and all(each["role"] != "user" for each in turns):
        num_first -= 1
        turns[num_first]["role"] = "user"
    if facts.system == "anywhere":
        return turns
    if facts.system == "first" and num_first:
        told = _text(*(each["content"] for each in turns[:num_first]))
        turns = [turns[0] | {"content": told}, *turns[num_first:]]
        return [turns[0], *map(_asked, turns[1:])]
    return [*map(_asked, turns)]


def _asked(turn: Turn) -> Turn:
    """`turn`, as a user's if it was the system's."""
    return turn | {"role": "user"} if turn["role"] == "system" else turn


def _with_calls(facts: TemplateFacts, turns: Sequence[Turn]) -> Iterator[Turn]:
    """The turns, with as much in a turn that calls tools as the template takes."""
    rest = deque(turns)
    while rest:
        turn = rest.popleft()
        calls = [_call(facts, each) for each in turn.get("tool_calls") or ()]
        if not calls or not facts.has_tools:
            yield turn
            continue
        if turn["content"] and not facts.has_words_with_calls:
            yield {name: value for name, value in turn.items() if name != "tool_calls"}
            turn = {"role": turn["role"], "content": ""}
        size = len(calls) if facts.has_many_calls else 1
        while calls:
            yield turn | {"tool_calls": calls[:size]}
            turn = {"role": turn["role"], "content": ""}
            if len(calls) > size and (place := _result(rest, calls[0])) is not None:
                yield rest[place]
                del rest[place]
            calls = calls[size:]


def _result(turns: Iterable[Turn], call: Turn) -> int | None:
    """Where the result of `call` is among the next turns: by its id, or else the first."""
    ids = [each.get("tool_call_id") for each in takewhile(lambda each: each["role"] == "tool", turns)]
    return ids.index(call["id"]) if call.get("id") in ids else 0 if ids else None


def _call(facts: TemplateFacts, call: Turn) -> Turn:
    function = call["function"]
    arguments = function["arguments"]
    if facts.arguments == "object" and not isinstance(arguments, Mapping):
        arguments = {"value": arguments}
    if facts.arguments == "text" and not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    return call | {"function": function | {"arguments": arguments}}


def _joined(turns: Sequence[Turn]) -> list[Turn]:
    """Turns of one speaker in a row as one, unless they call tools."""
    joined: list[Turn] = []
    for turn in turns:
        before = joined[-1] if joined else {"role": ""}
        is_same = turn["role"] == before["role"] and turn["role"] in ("user", "assistant")
        if is_same and "tool_calls" not in before:
            joined[-1] = before | turn | {"content": _text(before["content"], turn["content"])}
        else:
            joined.append(turn)
    return joined


def _text(*contents: str) -> str:
    return "\n\n".join(filter(None, contents))
