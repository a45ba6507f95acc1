"""Takes <tool_call>...</tool_call> out of an answer, each call as soon as its function is known."""

import re
from collections.abc import Mapping
from typing import Any, Final

from tiny_llm_lab.serving.server.chat.json_call import CLOSE, OPEN, JsonCall, UnfinishedCallError, parse_call
from tiny_llm_lab.serving.server.chat.parts import Part
from tiny_llm_lab.serving.server.chat.tagged_call import FUNCTION, TaggedCall, may_begin, stopped

_PYTHON_TAG: Final = "<|python_tag|>"  # Llama 3 may begin a call so
_FUNCTION_FORMS: Final = (f"{FUNCTION}{{}}>", f'{FUNCTION}"{{}}">', '<function name="{}">')
Schemas = Mapping[str, Mapping[str, Any]]  # a JSON schema of the arguments, by function name


class ToolCallParser:
    """Splits one answer into content and calls.

    A text in a call's tags is a call once it names a function and begins its arguments or ends there,
    whatever follows; before that, or if it never does, it is content. Qwen3-Coder forgets <tool_call>:
    <function=...> of a function that it may call begins one too, on a line of its own. Blanks before,
    between and after calls belong to none of them.
    """

    def __init__(self, schemas: Schemas, is_open: bool = False, may_be_bare: bool = False) -> None:
        """`schemas` by function name; `is_open`: the answer is a call from its first letter, by its form.

        `may_be_bare`: an answer or a line after a call that begins with the JSON of one is a call, as
        Llama 3 writes them.
        """
        self._schemas, self._is_forced, self._may_be_bare = schemas, is_open, may_be_bare
        names = [name for name in schemas if re.fullmatch(r"[^<>\s]+", name)]
        quoted = (form.format(name) for name in names for form in _FUNCTION_FORMS)
        self._tags = (OPEN, CLOSE, *quoted)
        self._tag = re.compile("|".join(map(re.escape, self._tags)))
        self._is_in_line = False  # after a word in the line
        self._is_in_call = is_open
        self._reader: JsonCall | TaggedCall | None = None  # of a call whose function is known
        self._open = "" if is_open else OPEN  # the call that the text is in
        self._held = ""
        self._num_read = 0  # in the held text of a call; the call does not end before it
        self._blanks: str | None = ""  # held until a word follows; None between words
        self._has_calls = False

    def feed(self, text: str) -> list[Part]:
        """The parts that are certain after `text`."""
        self._held += text
        parts: list[Part] = []
        while True:
            if self._reader is not None:
                more, is_progress = self._next_arguments(self._reader)
            else:
                more, is_progress = self._next_head() if self._is_in_call else self._next_content()
            parts += more
            if not is_progress:
                return [each for each in parts if each.text]

    def finish(self, is_cut: bool = False) -> list[Part]:
        """The rest, at the end of the text; a call that was begun is closed unless it `is_cut`."""
        text, self._held = self._held, ""
        if self._reader is not None:
            return [Part("arguments", self._reader.finish(is_cut))]
        if self._is_in_call:
            begun = TaggedCall.begun(stopped(text), self._schemas)
            if name := begun[0] if begun else JsonCall.named(text, self._schemas):
                return _parts(name, "" if is_cut else "{}")
            try:
                call = parse_call(text)
            except UnfinishedCallError:
                call = None
            if call is not None:
                return _parts(*call)
            if self._is_forced and not self._has_calls:
                # It was cut before it said more than we know.
                return [Part("call", name) for name in self._schemas] if len(self._schemas) == 1 else []
            text = self._open + text
        content = self._worded(text)
        return content if self._has_calls else [*content, Part("content", self._blanks or "")]

    def _next_bare(self) -> tuple[list[Part], bool] | None:
        """A call without tags, or nothing as long as there may be one; None if there is none."""
        text = self._held.lstrip("; \n").removeprefix(_PYTHON_TAG)
        begun = JsonCall.begun(text)
        if begun is not None and begun[0] in self._schemas:
            self._open, self._held, self._is_in_call = "", text, True
            return [], True
        if JsonCall.may_begin(text) or _PYTHON_TAG.startswith(text):
            return [], False
        self._may_be_bare = False
        return None

    def _next_content(self) -> tuple[list[Part], bool]:
        if self._may_be_bare and (found := self._next_bare()) is not None:
            return found
        for tag in self._tag.finditer(self._held):
            before, rest = self._held[: tag.start()], self._held[tag.end() :]
            if tag[0] == CLOSE:
                if self._has_calls and self._blanks is not None and not before.strip():
                    self._held, self._blanks = rest, ""  # it closes the call, which its function ended
                    return [], True
                continue
            is_bare = tag[0] != OPEN
            if is_bare and self._is_within_line(before):
                continue
            self._open, self._held = ("", tag[0] + rest) if is_bare else (OPEN, rest)
            self._is_in_call, self._num_read = True, 0
            return self._worded(before), True
        last = self._held.rfind("<")  # tags have no other
        is_part = last >= 0 and any(tag.startswith(self._held[last:]) for tag in self._tags)
        certain, self._held = (self._held[:last], self._held[last:]) if is_part else (self._held, "")
        return self._worded(certain), False

    def _next_head(self) -> tuple[list[Part], bool]:
        begun = JsonCall.begun(self._held) or TaggedCall.begun(self._held, self._schemas)
        if begun is not None:
            name, self._reader, self._held = begun
            self._has_calls = True
            return [Part("call", name)], True
        if self._held.lstrip().startswith("<") and not may_begin(self._held):
            return self._no_call(self._held.index("<") + 1), True
        end = self._held.find(CLOSE, self._num_read)
        if end < 0:
            self._num_read = max(self._num_read, len(self._held) - len(CLOSE) + 1)
            return [], False
        try:
            call = parse_call(self._held[:end])
        except UnfinishedCallError:
            self._num_read = end + len(CLOSE)
            return [], True
        if call is None:
            return self._no_call(end + len(CLOSE)), True
        self._has_calls = True
        self._leave_call(self._held[end:])
        return _parts(*call), True

    def _next_arguments(self, reader: JsonCall | TaggedCall) -> tuple[list[Part], bool]:
        text, rest = reader.feed(self._held)
        self._held = ""
        if rest is not None:
            self._leave_call(rest)
        return [Part("arguments", text)], rest is not None

    def _leave_call(self, rest: str) -> None:
        self._reader, self._is_in_call, self._held = None, False, rest
        self._blanks, self._is_in_line = "", False

    def _no_call(self, size: int) -> list[Part]:
        text, self._held, self._is_in_call = self._held[:size], self._held[size:], False
        return self._worded(self._open + text)

    def _is_within_line(self, text: str) -> bool:
        """Whether the last line has a word once `text` is added."""
        _, line_end, line = text.rpartition("\n")
        return bool(line.strip()) or (self._is_in_line and not line_end)

    def _worded(self, text: str) -> list[Part]:
        """`text` with the blanks before it, if it has a word."""
        self._is_in_line = self._is_within_line(text)
        if self._blanks is not None:
            text = self._blanks + text
            self._blanks = None if text.strip() else text
        return [] if self._blanks is not None else [Part("content", text)]


def _parts(name: str, arguments: str) -> list[Part]:
    return [Part("call", name), Part("arguments", arguments)]
