"""A solution that answers by the book: known events at known times, errors and interrupts on demand."""

from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from types import ModuleType, SimpleNamespace
from typing import Any

import mlx.core as mx
from tests.helpers.toy import QWEN3

from tiny_llm_lab.serving.options.model_options import Loaded
from tiny_llm_lab.types import (
    Completion,
    DoneEvent,
    Event,
    PrefillEvent,
    Prompt,
    SamplingParams,
    Timing,
    TokenEvent,
)


class WordTokenizer:
    """One token a word; it has no chat template."""

    eos_token_ids = frozenset({0})

    def encode(self, text: str) -> list[int]:
        return [len(word) for word in text.split()]


@dataclass
class FakeSolution:
    """Answers `words` to every prompt, one request after the other, one event a second."""

    words: Sequence[str] = ("one", "two", "three")
    fail_after: int | None = None  # events
    failure: BaseException = field(default_factory=KeyboardInterrupt)
    seen: list[Any] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)

    def batch_generate(
        self,
        model: object,
        tokenizer: WordTokenizer,
        prompts: Sequence[Prompt | str],
        *,
        on_event: Callable[[Event], None] | None = None,
        clock: Callable[[], float] = lambda: 0.0,
        **settings: Any,
    ) -> list[Completion]:
        self.seen, self.settings = list(prompts), settings
        start_s, done = clock(), []
        numbered = enumerate(self._events(tokenizer, prompts, start_s))
        for number, event in numbered:
            if number == self.fail_after:
                raise self.failure
            if on_event is not None:
                on_event(event)
            if isinstance(event, DoneEvent):
                done.append(event.completion)
        return done

    def stream_generate(
        self, model: object, tokenizer: WordTokenizer, prompt: str, sampling: SamplingParams, **settings: Any
    ) -> Iterator[Event]:
        self.seen, self.settings = [prompt], settings
        for number, event in enumerate(self._events(tokenizer, [Prompt(prompt, sampling)], 0.0)):
            if number == self.fail_after:
                raise self.failure
            yield event

    def _events(
        self, tokenizer: WordTokenizer, prompts: Sequence[Prompt | str], start_s: float
    ) -> Iterator[Event]:
        now_s = start_s
        for idx, prompt in enumerate(prompts):
            content = prompt.content if isinstance(prompt, Prompt) else prompt
            arrival_s = start_s + (prompt.arrival_s if isinstance(prompt, Prompt) else 0.0)
            assert isinstance(content, str)
            length = len(tokenizer.encode(content))
            if not length:
                yield DoneEvent(
                    Completion(idx, 0, (), "", "error", Timing(arrival_s), "the prompt is empty: say more")
                )
                continue
            now_s += 1
            yield PrefillEvent(idx, length, length, now_s)
            times = []
            for word in self.words:
                now_s += 1
                times.append(now_s)
                yield TokenEvent(idx, len(word), word + " ", now_s)
            tokens, text = tuple(map(len, self.words)), " ".join(self.words)
            yield DoneEvent(Completion(idx, length, tokens, text, "stop", Timing(arrival_s, tuple(times))))


def loaded(solution: FakeSolution, limit: int = 4096) -> Loaded:
    """What `load` returns, around `solution`."""
    config = replace(QWEN3, max_position_embeddings=limit)
    checkpoint = SimpleNamespace(tokenizer=WordTokenizer(), dtype=mx.float32)
    parts: Any = (checkpoint, solution, SimpleNamespace(config=config))
    return Loaded(*parts)


def parse(command: ModuleType, *argv: str) -> Namespace:
    """The command's arguments as its own parser reads them."""
    parser = ArgumentParser()
    command.add_arguments(parser)
    return parser.parse_args(argv)
