"""Answers of an engine in this process."""

import itertools
import signal
from collections.abc import Generator, Mapping, Sequence
from types import FrameType

from tiny_llm_lab.serving.llm import LLM
from tiny_llm_lab.serving.options.chat_template import as_chat
from tiny_llm_lab.types import SamplingParams


class EngineAnswers:
    """One request at a time; the earlier turns of a conversation are in the prefix cache."""

    def __init__(self, llm: LLM) -> None:
        self._llm = llm
        self._numbers = itertools.count()

    def stream(
        self, messages: Sequence[Mapping[str, str]], sampling: SamplingParams
    ) -> Generator[str, None, None]:
        """Yield the answer to a conversation piece by piece.

        Ctrl-C takes effect between two steps, as KeyboardInterrupt, so that the engine keeps its cache.
        Raises UserError for a conversation that is too long.
        """
        name, engine = f"turn-{next(self._numbers)}", self._llm.engine
        engine.add(name, as_chat(self._llm.checkpoint.tokenizer, messages), sampling)
        is_interrupted = False

        def interrupt(number: int, frame: FrameType | None) -> None:
            nonlocal is_interrupted
            is_interrupted = True

        before = signal.signal(signal.SIGINT, interrupt)
        try:
            while engine.has_requests and not is_interrupted:
                yield from (output.text for output in engine.step())
        finally:
            signal.signal(signal.SIGINT, before)
            engine.abort(name)
        if is_interrupted:
            raise KeyboardInterrupt

    def close(self) -> None:
        """Free the engine's memory."""
        self._llm.release()
