"""A model's text, read while it arrives: reasoning, then content and tool calls."""

from tiny_llm_lab.serving.server.chat.parsed import ParsedText
from tiny_llm_lab.serving.server.chat.reasoning import ReasoningParser
from tiny_llm_lab.serving.server.chat.tool_calls import ToolCallParser


class AnswerParser:
    """Reads one answer; None leaves that part of it in the content."""

    def __init__(self, reasoning: ReasoningParser | None, tool_calls: ToolCallParser | None) -> None:
        self._reasoning, self._tool_calls = reasoning, tool_calls

    @property
    def is_plain(self) -> bool:
        """Whether all text from here on is content, at once."""
        return self._tool_calls is None and (self._reasoning is None or self._reasoning.is_over)

    def feed(self, text: str, is_last: bool = False) -> ParsedText:
        """What `text` makes certain; all of the rest if it `is_last`."""
        reasoning = ""
        if self._reasoning is not None:
            reasoning, text = self._reasoning.feed(text)
            if is_last:
                more, rest = self._reasoning.finish()
                reasoning, text = reasoning + more, text + rest
        if self._tool_calls is None:
            return ParsedText(reasoning, text)
        parsed = self._tool_calls.feed(text)
        if not is_last:
            return ParsedText(reasoning, parsed.content, parsed.tool_calls)
        last = self._tool_calls.finish()
        return ParsedText(reasoning, parsed.content + last.content, parsed.tool_calls + last.tool_calls)
