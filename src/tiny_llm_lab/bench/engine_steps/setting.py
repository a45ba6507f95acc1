"""What all experiments are told: whose engine, which model, how large and how often."""

from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np

from tiny_llm_lab.types import Checkpoint, SamplingParams, SchedulerConfig, UserError

BLOCK_SIZE = 16


@dataclass(frozen=True)
class Setting:
    """`llm` is the solution's package, `model` what it built of `checkpoint`."""

    llm: Any
    model: Any
    checkpoint: Checkpoint
    rounds: int = 9  # of steps that take turns
    repeats: int = 1  # of runs that take turns
    context: int = 512  # stored tokens of a decode
    streams: int = 8  # decodes
    chunk: int = 128
    load_s: float = 5.0  # how long a run under load is to take
    memory_tokens: int = 16_384  # of the prompt whose memory is measured
    seed: int = 0

    @property
    def limit(self) -> int:
        """The most tokens of one request."""
        return int(self.model.config.max_position_embeddings)

    def prompts(self, count: int, length: int, seed: int = 0) -> list[list[int]]:
        """`count` prompts of `length` random tokens that do not begin alike."""
        draw = np.random.default_rng([self.seed, seed])
        vocab = self.model.config.vocab_size
        prompts: list[list[int]] = draw.integers(0, vocab, (count, length)).tolist()
        return prompts

    def engine(self, config: SchedulerConfig, num_tokens: int, **others: Any) -> Any:
        """An engine without prefix cache whose blocks hold `num_tokens` tokens of config's requests."""
        # Each request may leave most of its last block empty.
        num_blocks = -(-num_tokens // BLOCK_SIZE) + config.max_num_seqs
        return self.llm.Engine(
            self.model,
            self.checkpoint.tokenizer,
            config,
            num_blocks=num_blocks,
            block_size=BLOCK_SIZE,
            enable_prefix_caching=False,
            **others,
        )

    def require_room(self, num_tokens: int, what: str) -> None:
        """Raise UserError unless a request of `num_tokens` tokens fits."""
        if num_tokens > self.limit:
            raise UserError(f"{what} makes {num_tokens} tokens; the model takes {self.limit}: shorten it")


def answering(max_tokens: int) -> SamplingParams:
    """Greedy answers of exactly so many tokens."""
    return SamplingParams(max_tokens=max_tokens, ignore_eos=True)


def free_memory() -> None:
    """Give back what the run before has left, and begin a new peak."""
    mx.synchronize()
    mx.clear_cache()
    mx.reset_peak_memory()
