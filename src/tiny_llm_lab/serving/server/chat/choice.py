"""Each choice of a chat's answer, whole and in pieces."""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from json import dumps, loads
from typing import Any

from tiny_llm_lab.runtime.models.text.tokenizer import CheckpointTokenizer
from tiny_llm_lab.serving.server.api import WrittenList, to_json
from tiny_llm_lab.serving.server.chat.answer_parser import AnswerParser, Part, PartKind
from tiny_llm_lab.types import Completion, EngineOutput, FinishReason, Tokenizer, TokenLogprobs


@dataclass
class ChatChoice:
    """What one choice has so far."""

    tokenizer: CheckpointTokenizer
    parser: AnswerParser
    has_logprobs: bool = False
    has_reasoning: bool = True  # False: reasoning is computed but not sent
    stops: Sequence[str] = ()

    def __post_init__(self) -> None:
        self._parts: list[Part] = []
        self._calls: list[dict[str, Any]] = []
        self._logprobs = WrittenList()
        self._finish_reason: str | None = None
        self._is_first = True

    def keep(self, output: EngineOutput) -> None:
        """Add a step's output, for `whole`."""
        self._parts += self._parse(output)
        for score in self._scores(output):
            self._logprobs.append(score)

    def whole(self, idx: int) -> dict[str, Any]:
        """The choice in an answer that is not streamed."""
        content = _joined(self._parts, "content")
        shown = content if content or not self._calls else None
        message: dict[str, Any] = {"role": "assistant", "content": shown, "refusal": None}
        if self._calls:
            message["tool_calls"] = self._calls
        if reasoning := _joined(self._parts, "reasoning"):
            message["reasoning_content"] = reasoning
        return {
            "index": idx,
            "message": message,
            "logprobs": {"content": self._logprobs, "refusal": None} if self.has_logprobs else None,
            "finish_reason": self._finish_reason,
        }

    def chunk(self, idx: int, output: EngineOutput) -> bytes | None:
        """The choice in an event; None if it would be empty."""
        if self.parser.is_plain and output.completion is None and not (self._is_first or self.has_logprobs):
            # Most chunks are like this: a step takes a millisecond and makes one for every stream.
            text = f'{{"index": {idx}, "delta": {{"content": {dumps(output.text)}}}, '
            return f'{text}"logprobs": null, "finish_reason": null}}'.encode() if output.text else None
        parts, scores = self._parse(output), self._scores(output)
        delta: dict[str, Any] = {"role": "assistant", "content": ""} if self._is_first else {}
        self._is_first = False
        if reasoning := _joined(parts, "reasoning"):
            delta["reasoning_content"] = reasoning
        if content := _joined(parts, "content"):
            delta["content"] = content
        if calls := self._deltas(parts):
            delta["tool_calls"] = calls
        if not delta and not scores and self._finish_reason is None:
            return None
        logprobs = to_json({"content": scores, "refusal": None}).decode() if self.has_logprobs else "null"
        fields = f'"delta": {dumps(delta)}, "logprobs": {logprobs}'
        return f'{{"index": {idx}, {fields}, "finish_reason": {dumps(self._finish_reason)}}}'.encode()

    def _parse(self, output: EngineOutput) -> list[Part]:
        done = output.completion
        end = end_of(done, self.stops, self.tokenizer)
        parts = self.parser.feed(output.text, end)
        for part in parts:
            if part.kind == "call":
                self._calls.append(_call(part.text))
            elif part.kind == "arguments":
                self._calls[-1]["function"]["arguments"] += part.text
        if done is not None:
            is_called = self._calls and done.finish_reason == "stop"
            is_whole = is_called and (end == "stop" or is_json(self._calls[-1]["function"]["arguments"]))
            self._finish_reason = "tool_calls" if is_whole else done.finish_reason
        return [each for each in parts if self.has_reasoning or each.kind != "reasoning"]

    def _deltas(self, parts: Sequence[Part]) -> list[dict[str, Any]]:
        """What is new of the calls: `parts`, which are a part of them already."""
        index = len(self._calls) - sum(each.kind == "call" for each in parts) - 1
        deltas: list[dict[str, Any]] = []
        for part in parts:
            if part.kind == "call":
                index += 1
                whole = self._calls[index]
                deltas.append({"index": index, **whole, "function": {"name": part.text, "arguments": ""}})
            elif part.kind == "arguments":
                if not deltas:
                    deltas.append({"index": index, "function": {"arguments": ""}})
                deltas[-1]["function"]["arguments"] += part.text
        return deltas

    def _scores(self, output: EngineOutput) -> list[dict[str, Any]]:
        return chat_logprobs(self.tokenizer, output.logprobs) if self.has_logprobs else []


def end_of(done: Completion | None, stops: Sequence[str], tokenizer: Tokenizer) -> FinishReason | None:
    """Why an answer ended, for its parser: one of `stops` cuts a call as a limit does."""
    is_cut = stop_string(done, stops, tokenizer) is not None
    return "length" if is_cut else None if done is None else done.finish_reason


def stop_string(done: Completion | None, stops: Sequence[str], tokenizer: Tokenizer) -> str | None:
    """Which of `stops` ended an answer: it is in the tokens, but no longer in the text."""
    if done is None or not stops or done.finish_reason != "stop":
        return None
    rest = tokenizer.decode(list(done.token_ids))[len(done.text) :]
    return min(((at, stop) for stop in stops if (at := rest.find(stop)) >= 0), default=(0, None))[1]


def is_json(arguments: str) -> bool:
    """Whether the arguments of a call are whole."""
    try:
        dumps(loads(arguments), allow_nan=False)
    except (ValueError, RecursionError):
        return False
    return True


def _call(name: str) -> dict[str, Any]:
    number = uuid.uuid4().hex[:24]
    return {"id": f"call_{number}", "type": "function", "function": {"name": name, "arguments": ""}}


def _joined(parts: Sequence[Part], kind: PartKind) -> str:
    return "".join(each.text for each in parts if each.kind == kind)


def chat_logprobs(tokenizer: CheckpointTokenizer, scores: Sequence[TokenLogprobs]) -> list[dict[str, Any]]:
    """An item for each token; a part of a character has its bytes, and U+FFFD as its text."""
    return [
        {
            **_token(tokenizer, score.token_id, score.logprob),
            "top_logprobs": [_token(tokenizer, token_id, logprob) for token_id, logprob in score.top],
        }
        for score in scores
    ]


def _token(tokenizer: CheckpointTokenizer, token_id: int, logprob: float) -> dict[str, Any]:
    data = tokenizer.token_bytes(token_id)
    return {"token": data.decode(errors="replace"), "logprob": logprob, "bytes": list(data)}
