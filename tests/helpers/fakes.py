"""A model whose every answer depends on its whole prefix, and caches that are counted."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, ClassVar

import mlx.core as mx
import numpy as np
from tests.helpers.fake_clock import FakeClock as FakeClock
from tests.helpers.toy import QWEN3

from tiny_llm_lab import load_solution
from tiny_llm_lab.runtime.task_names import TaskNames
from tiny_llm_lab.types import Wanted

LETTERS = range(97, 123)
NONSENSE = ord("!")


@dataclass(frozen=True)
class Call:
    """One forward pass: `offset` as it was given, `batched` when it went through the batch's cache."""

    tokens: list[list[int]]
    offset: int | list[int]
    last: int  # tokens whose logits were wanted
    batched: bool

    @property
    def length(self) -> int:
        return len(self.tokens[0])


@cache
def batching_of(solution: str) -> Callable[..., object]:
    """The class of a batch's cache."""
    return TaskNames(load_solution(solution)).BatchingKvCache


class FakeCache:
    """One request's keys and values of one layer as plain arrays; tells its model what happens to it."""

    solution: ClassVar[str] = "ref"  # the one under test, set by tests/conftest.py

    def __init__(self, log: list[str], layer: int) -> None:
        self.offset = 0
        self._log, self._layer = log, layer
        self._stored: tuple[mx.array, mx.array] | None = None

    def offsets(self, num_rows: int) -> list[int]:
        return [self.offset] * num_rows

    def update_and_fetch(self, key: mx.array, value: mx.array) -> tuple[mx.array, mx.array]:
        if self._stored is not None:
            key = mx.concatenate([self._stored[0], key], axis=2)
            value = mx.concatenate([self._stored[1], value], axis=2)
        self._stored = (key, value)
        self.offset = key.shape[2]
        return key, value

    @property
    def holds_memory(self) -> bool:
        return self._stored is not None

    def fetch(self) -> tuple[mx.array, mx.array]:
        if self._stored is None:
            raise ValueError("the cache is empty")
        return self._stored

    def attention_mask(self, num_new_tokens: int) -> str | None:
        return None if num_new_tokens == 1 else "causal"

    def rewind(self, n: int) -> None:
        if not 0 <= n <= self.offset:
            raise ValueError(f"cannot rewind {n} of {self.offset} tokens")
        self.offset -= n
        if self._stored is not None:
            key, value = self._stored
            self._stored = (key[:, :, : self.offset], value[:, :, : self.offset])

    def materialize(self) -> None:
        self._log.append(f"materialize {self._layer}")

    def for_batch(self, max_active_requests: int, max_seq_len: int | None, headroom: int = 0) -> object:
        """The batch is the one of the solution under test, whose rows the tests look at."""
        more = {"headroom": headroom} if headroom else {}
        return batching_of(self.solution)(max_active_requests, max_seq_len, **more)

    def release(self) -> None:
        self._stored = None
        self.offset = 0


class FakeModel:
    """Speaks the protocol of `Model` and predicts from a hash of all (position, token) pairs it may see.

    Tokens and positions travel through the cache as keys and values, in every layer, so a token that is
    dropped, repeated, moved, hidden or put into a wrong row changes everything that follows. With `answers`
    it says `answers[prompt]` token by token instead, and "!" as soon as anything is out of place.
    """

    def __init__(
        self,
        answers: Mapping[str, Sequence[int]] | None = None,
        *,
        num_layers: int = 2,
        max_position_embeddings: int = 4096,
        before_call: Callable[[Call], None] | None = None,
    ) -> None:
        self.config = replace(
            QWEN3, num_hidden_layers=num_layers, max_position_embeddings=max_position_embeddings
        )
        self.ops = None
        self.calls: list[Call] = []
        self.log: list[str] = []
        self.caches: list[FakeCache] = []
        self.before_call = before_call
        self._answers = None if answers is None else {tuple(p.encode()): list(a) for p, a in answers.items()}

    def create_kv_cache(self) -> list[FakeCache]:
        layers = [FakeCache(self.log, layer) for layer in range(self.config.num_hidden_layers)]
        self.caches += layers
        return layers

    def __call__(
        self,
        tokens: mx.array,
        offset: int | list[int] = 0,
        cache: Sequence[Any] | None = None,
        *,
        wanted: Wanted = Wanted(),
    ) -> mx.array:
        batch, length = tokens.shape
        batched = cache is not None and not isinstance(cache[0], FakeCache)
        call = Call(np.array(tokens).tolist(), offset, wanted.last, batched)
        self.calls.append(call)
        assert len(self.calls) < 10_000, "the model was called 10,000 times: does this run ever end?"
        self.log.append("forward")
        if self.before_call is not None:
            self.before_call(call)
        offsets = [offset] * batch if isinstance(offset, int) else list(offset)
        if cache is not None and cache[0].offsets(batch) != offsets:
            raise ValueError(f"offset {offset} does not match a cache of {cache[0].offsets(batch)} tokens")
        positions = np.array(offsets)[:, None] + np.arange(length)
        key = mx.array(np.array(tokens), dtype=mx.float32)[:, None, :, None]
        value = mx.array(positions, dtype=mx.float32)[:, None, :, None]
        mask = "causal" if cache is None else cache[0].attention_mask(length)
        stored = [(key, value)] if cache is None else [layer.update_and_fetch(key, value) for layer in cache]
        kept = min(wanted.last, length)
        rows = [
            [self._row(stored, mask, b, i, length) for i in range(length - kept, length)]
            for b in range(batch)
        ]
        return mx.array(np.array(rows, dtype=np.float32).reshape(batch, kept, self.config.vocab_size))

    def answer_to(self, prompt: Sequence[int], num_tokens: int) -> list[int]:
        """The greedy continuation of `prompt`, worked out without caches, batches or chunks."""
        tokens = list(prompt)
        for _ in range(num_tokens):
            tokens.append(int(np.argmax(self._logits([(p, t) for p, t in enumerate(tokens)]))))
        return tokens[len(prompt) :]

    def prefill_calls(self) -> list[Call]:
        return [call for call in self.calls if not call.batched]

    def decode_calls(self) -> list[Call]:
        return [call for call in self.calls if call.batched]

    def _row(
        self, stored: list[tuple[mx.array, mx.array]], mask: Any, b: int, i: int, length: int
    ) -> np.ndarray:
        seen = []
        for key, value in stored:
            tokens, positions = np.array(key)[b, 0, :, 0], np.array(value)[b, 0, :, 0]
            visible = _visible(mask, b, i, length, len(tokens))
            seen.append([(int(p), int(t)) for p, t, v in zip(positions, tokens, visible, strict=True) if v])
        if any(sorted(layer) != sorted(seen[0]) for layer in seen):
            return _peaked(NONSENSE, self.config.vocab_size)  # the layers disagree about the past
        return self._logits(seen[0])

    def _logits(self, seen: list[tuple[int, int]]) -> np.ndarray:
        vocab = self.config.vocab_size
        if self._answers is not None:
            return _peaked(self._scripted(sorted(seen)), vocab)
        pairs = np.array(seen, dtype=np.uint64)
        mixed = _mix(pairs[:, 0] * np.uint64(65537) + pairs[:, 1] + np.uint64(1))
        # A sum: as in attention, the order of storage does not matter; positions do.
        logits = np.full(vocab, -30.0, np.float32)
        logits[LETTERS.start : LETTERS.stop] = np.random.default_rng(int(mixed.sum())).normal(
            size=len(LETTERS)
        )
        return logits

    def _scripted(self, seen: list[tuple[int, int]]) -> int:
        prefix = tuple(token for _, token in seen)
        if [position for position, _ in seen] != list(range(len(seen))):
            return NONSENSE
        for prompt, answer in (self._answers or {}).items():
            done = len(prefix) - len(prompt)
            if (
                prefix[: len(prompt)] == prompt
                and done >= 0
                and prefix[len(prompt) :] == tuple(answer[:done])
            ):
                return answer[done] if done < len(answer) else NONSENSE
        return NONSENSE


def _visible(mask: Any, b: int, i: int, length: int, stored: int) -> np.ndarray:
    if mask is None:
        return np.ones(stored, bool)
    if isinstance(mask, str):
        return np.arange(stored) <= stored - length + i
    full = np.broadcast_to(np.array(mask), (max(b + 1, mask.shape[0]), 1, length, stored))
    return full[b, 0, i] if full.dtype == bool else full[b, 0, i] == 0


def _peaked(token: int, vocab: int) -> np.ndarray:
    logits = np.zeros(vocab, np.float32)
    logits[token] = 20.0
    return logits


def _mix(x: np.ndarray) -> np.ndarray:
    """splitmix64: every bit of the result depends on every bit of x."""
    x = x * np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def live_requests(model: FakeModel) -> int:
    """How many requests hold memory in a cache of their own."""
    return sum(cache.holds_memory for cache in model.caches) // model.config.num_hidden_layers


def prefill_by_hand(model: Any, request: Any) -> None:
    """What `try_prefill` will do on day 2.7, in one piece."""
    logits = model(mx.array([request.prefill_tokens]), 0, request.kv_cache, wanted=Wanted(last=1))
    request.offset = len(request.prefill_tokens)
    request.answer.accept(int(request.sample(logits[:, -1], request.offset).item()))
