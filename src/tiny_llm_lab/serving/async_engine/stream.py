"""The outputs of one request, from the engine to the client that reads them."""

import asyncio
from collections.abc import Sequence
from typing import Final

from tiny_llm_lab.types import EngineOutput

MAX_WAITING: Final = 64


class RequestStream:
    """An asynchronous iterator over the outputs of one request, for one reader.

    A slow reader gets several steps at once. Never more than the answer waits, in MAX_WAITING
    outputs at most.
    """

    def __init__(self, request_id: str, changed: asyncio.Event | None = None) -> None:
        """Sets request_id, and is_done = False: whether the engine has no more to bring.

        `changed` is set whenever something has come; streams with one reader may share it.
        """
        self.request_id = request_id
        self.is_done = False
        self._waiting: list[EngineOutput] = []
        self._error: BaseException | None = None
        self._changed = changed or asyncio.Event()

    @property
    def num_waiting(self) -> int:
        """Outputs that the reader has not taken yet."""
        return len(self._waiting)

    def put(self, output: EngineOutput) -> None:
        """Add what a step brought; on the reader's event loop."""
        if len(self._waiting) >= MAX_WAITING:  # an object costs more than its contents
            self._waiting = [merged(self._waiting)]
        self._waiting.append(output)
        self.is_done = output.completion is not None
        self._changed.set()

    def fail(self, error: BaseException) -> None:
        """End the stream with an error; on the reader's event loop."""
        self._error, self.is_done = error, True
        self._changed.set()

    def __aiter__(self) -> "RequestStream":
        return self

    async def __anext__(self) -> EngineOutput:
        """Everything since the last call, as one output. Raises the error that ended the stream."""
        while (output := self.take()) is None:
            if self.is_done:
                raise StopAsyncIteration
            self._changed.clear()
            await self._changed.wait()
        return output

    def take(self) -> EngineOutput | None:
        """What came since the last call; None when nothing did. Raises the error that ended the stream."""
        outputs, self._waiting = self._waiting, []
        if not outputs and self._error is not None:
            raise self._error
        return merged(outputs) if outputs else None


def merged(outputs: Sequence[EngineOutput]) -> EngineOutput:
    """One output in place of several of a request, oldest first."""
    last = outputs[-1]
    if len(outputs) == 1:
        return last
    return EngineOutput(
        last.request_id,
        tuple(token for each in outputs for token in each.token_ids),
        "".join(each.text for each in outputs),
        last.completion,
        tuple(score for each in outputs for score in each.logprobs),
        tuple(event for each in outputs for event in each.events),
        last.num_cached_tokens,
        tuple(score for each in outputs for score in each.prompt_logprobs),
    )
