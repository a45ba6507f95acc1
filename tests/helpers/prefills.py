"""Prompts in prefill without a model: what day 2.8 pauses, packs and drops."""

from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx
from tests.helpers.fakes import FakeCache
from tests.helpers.toy import random_array

from tiny_llm_lab.types import Arrival, Prompt

G, D, NUM_LAYERS = 2, 16, 3
BYTES_OF_A_TOKEN = NUM_LAYERS * 2 * G * D * 4  # keys and values, float32


def arrival(prompt_idx: int, arrival_s: float = 0.0, priority_class: Any = "batch") -> Arrival:
    return Arrival(prompt_idx, Prompt("", priority_class=priority_class), arrival_s)


@dataclass
class HalfPrefill:
    """A prompt of `length` tokens, of which `compute` fills the caches with random keys and values."""

    prompt_idx: int
    length: int = 1000
    offset: int = 0
    kv_cache: list[FakeCache] = field(default_factory=lambda: [FakeCache([], i) for i in range(NUM_LAYERS)])

    @property
    def prefill_tokens(self) -> list[int]:
        return [97] * self.length

    def compute(self, num_tokens: int) -> "HalfPrefill":
        for i, layer in enumerate(self.kv_cache):
            key = random_array(self.prompt_idx + 10 * i, 1, G, num_tokens, D)
            layer.update_and_fetch(key, -2 * key)
        self.offset += num_tokens
        return self

    def release(self) -> None:
        for layer in self.kv_cache:
            layer.release()

    @property
    def stored(self) -> list[mx.array]:
        return [part for layer in self.kv_cache for part in layer.fetch()]

    @property
    def holds_memory(self) -> bool:
        return any(layer.holds_memory for layer in self.kv_cache)


def computed(prompt_idx: int, num_tokens: int, length: int = 1000) -> HalfPrefill:
    return HalfPrefill(prompt_idx, length).compute(num_tokens)
