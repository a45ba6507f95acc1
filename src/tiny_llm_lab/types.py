"""The nouns that the lab and every solution share; this module imports nothing of the course.

Shapes use one legend throughout: B batch, L new tokens, S stored tokens, H query heads, G kv heads,
D head dim, E hidden size, V vocabulary. All times are seconds of one monotonic clock.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

import mlx.core as mx

FinishReason = Literal["stop", "length", "error"]


class UserError(ValueError):
    """Something the user can mend: one line that says what happened and the cure."""


@dataclass(frozen=True)
class ModelConfig:
    """The architecture of one Qwen checkpoint, under the names of its `config.json`."""

    model_type: str
    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    intermediate_size: int
    rms_norm_eps: float
    rope_theta: float
    max_position_embeddings: int
    tie_word_embeddings: bool
    qkv_bias: bool  # Qwen2: q, k and v projections carry a bias
    qk_norm: bool  # Qwen3: queries and keys are RMS-normalised per head


@dataclass(frozen=True)
class QuantizedWeights:
    """An [O, I] matrix in MLX's affine packing: w = scale * q + bias, one pair per group along I.

    weight [O, I * bits / 32] uint32, lowest bits first; scales and biases [O, I / group_size].
    """

    weight: mx.array
    scales: mx.array
    biases: mx.array
    group_size: int
    bits: int


Weight = mx.array | QuantizedWeights


class Detokenizer(Protocol):
    """Turns token ids into text one at a time, holding back bytes that are not yet a character."""

    def add_token(self, token: int) -> None: ...
    def finalize(self) -> None: ...
    @property
    def last_segment(self) -> str:
        """The text that became final since this property was last read."""
        ...


class Tokenizer(Protocol):
    """What a solution may ask of a tokenizer."""

    def encode(self, text: str) -> list[int]: ...
    def decode(self, token_ids: Sequence[int]) -> str: ...
    @property
    def detokenizer(self) -> Detokenizer:
        """A new detokenizer at every read."""
        ...

    @property
    def eos_token_ids(self) -> set[int]:
        """Every token that ends a text (Qwen declares two)."""
        ...


@dataclass(frozen=True)
class Checkpoint:
    """A loaded model folder; `weights` keeps the checkpoint's own parameter names."""

    name: str
    path: Path
    config: ModelConfig
    weights: Mapping[str, Weight]
    tokenizer: Tokenizer
    dtype: mx.Dtype


@dataclass(frozen=True)
class SamplingParams:
    """How one request picks its tokens and when it stops; the defaults are greedy decoding."""

    temperature: float = 0.0
    top_k: int = 0  # 0 = off
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    max_tokens: int | None = None  # None = as many as fit in max_seq_len
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        checks = {
            "temperature must be 0 or more": self.temperature >= 0,
            "top_k must be 0 (off) or more": self.top_k >= 0,
            "top_p must be above 0 and at most 1": 0 < self.top_p <= 1,
            "min_p must be at least 0 and below 1": 0 <= self.min_p < 1,
            "max_tokens must be 1 or more": self.max_tokens is None or self.max_tokens >= 1,
            "a stop string must not be empty": all(self.stop),
        }
        for complaint, holds in checks.items():
            if not holds:
                raise UserError(complaint)


@dataclass(frozen=True)
class Prompt:
    """One request as it reaches `batch_generate`: text or token ids, and when it arrives."""

    content: str | Sequence[int]
    sampling: SamplingParams = SamplingParams()
    arrival_s: float = 0.0  # after the call began; earlier ones are served first


@dataclass(frozen=True)
class Timing:
    """When things happened to one request, on the clock of its run."""

    arrival_s: float
    token_s: tuple[float, ...] = ()

    @property
    def ttft_s(self) -> float | None:
        """Time to first token, from arrival; None without a token."""
        return self.token_s[0] - self.arrival_s if self.token_s else None

    @property
    def itl_s(self) -> list[float]:
        """Inter-token latencies: every gap between consecutive tokens."""
        return [after - before for before, after in zip(self.token_s, self.token_s[1:], strict=False)]


@dataclass(frozen=True)
class Completion:
    """What became of one prompt. `token_ids` leaves out the end-of-sequence token."""

    prompt_idx: int
    num_prompt_tokens: int
    token_ids: tuple[int, ...]
    text: str
    finish_reason: FinishReason
    timing: Timing
    error: str | None = None


@dataclass(frozen=True)
class PrefillEvent:
    """A chunk was computed: `num_computed_tokens` of the prompt are in the cache now."""

    prompt_idx: int
    num_computed_tokens: int
    num_prompt_tokens: int
    time_s: float


@dataclass(frozen=True)
class TokenEvent:
    """A token was sampled; `token_id` is None when only text held back so far is released."""

    prompt_idx: int
    token_id: int | None
    text: str
    time_s: float


@dataclass(frozen=True)
class DoneEvent:
    """A request ended, well or not; exactly one per prompt."""

    completion: Completion


Event = PrefillEvent | TokenEvent | DoneEvent
EventCallback = Callable[[Event], None]
Clock = Callable[[], float]


class KvCache(Protocol):
    """The stored keys and values of one layer."""

    @property
    def offset(self) -> int | list[int]:
        """Tokens stored: one number, or one per row of a batch."""
        ...

    def update_and_fetch(self, key: mx.array, value: mx.array) -> tuple[mx.array, mx.array]:
        """Append key, value [B, G, L, D]; return everything stored, [B, G, S, D] each."""
        ...

    def attention_mask(self, num_new_tokens: int) -> mx.array | Literal["causal"] | None:
        """The mask for `num_new_tokens` tokens that are about to be appended."""
        ...

    def release(self) -> None:
        """Give the memory back."""
        ...


class RequestKvCache(KvCache, Protocol):
    """The cache of a single request."""

    def fetch(self) -> tuple[mx.array, mx.array]:
        """Everything stored: keys and values [1, G, S, D]."""
        ...

    def materialize(self) -> None:
        """Compute what is still lazy."""
        ...


class Model(Protocol):
    """A language model behind the seam."""

    config: ModelConfig

    def __call__(
        self,
        tokens: mx.array,
        offset: int | list[int] = 0,
        cache: Sequence[KvCache] | None = None,
        logits_to_keep: int | None = None,
    ) -> mx.array:
        """tokens [B, L] int32 at positions offset, ... -> logits [B, L or logits_to_keep, V]."""
        ...

    def create_kv_cache(self) -> list[RequestKvCache]:
        """One empty cache per layer, for one request."""
        ...
