"""How a prompt is cut into chunks: where, with which mask, how large, and how it went."""

from collections.abc import Iterator

import mlx.core as mx

from tiny_llm_lab.types import BatchSettings, ModelConfig


def chunk_spans(prompt_len: int, prefill_step: int, start: int = 0) -> Iterator[tuple[int, int]]:
    """Cut tokens `start` to `prompt_len` into chunks of `prefill_step`; the last one may be shorter.

    Yields (start, end) pairs in absolute positions, end exclusive, in order and without gaps:
    (10, 4) -> (0, 4), (4, 8), (8, 10). Raises ValueError at once when `start` is negative, no token is left,
    or `prefill_step` is below 1.
    """
    raise NotImplementedError("task 2.7.1")


def chunked_attention_mask(
    chunk_start: int, chunk_size: int, total_length: int, dtype: mx.Dtype = mx.float32
) -> mx.array:
    """The additive mask of the chunk that begins at `chunk_start` in a prompt of `total_length` tokens.

    Shape [chunk_size, chunk_start + chunk_size]: every token of the chunk sees all earlier chunks and
    the chunk up to itself (0), nothing later (-inf). Equals what mask="causal" does in MLX. `dtype` must
    be that of the queries. Raises ValueError when the chunk is empty or leaves the prompt.
    """
    raise NotImplementedError("task 2.7.2")


def select_optimal_chunk_size(
    sequence_length: int,
    available_memory: int,
    active_decode_requests: int,
    *,
    batch_size: int = 5,
    bytes_per_token: int = 1,
) -> int:
    """A chunk size by rule of thumb.

    64 when 80 % of `batch_size` slots decode, or more; else 256 for a prompt of more than 2,048
    tokens; else 128. Never more than `available_memory` bytes hold at `bytes_per_token` (activations
    and cache together). Raises ValueError when the memory does not hold one token.
    """
    raise NotImplementedError("task 2.7.5")


def next_chunk_size(settings: BatchSettings, config: ModelConfig, prompt_len: int, num_decoding: int) -> int:
    """The most tokens of the next chunk of a prompt while `num_decoding` requests decode; 0 pauses it.

    The base is settings.prefill_step; where that is None, `select_optimal_chunk_size` chooses it for
    settings.prefill_memory bytes. settings.chunk_policy may change it, given the share of batch_size slots
    that decode. It may pause only while requests decode: otherwise a chunk has 1 token or more.
    """
    raise NotImplementedError("task 2.7.4")


class AdaptiveChunker:
    """Chooses the next chunk from what recent chunks cost and how busy the decode slots are."""

    def __init__(self, decode_latency_target: float = 0.05, max_pauses: int = 0) -> None:
        """`decode_latency_target`: seconds that a chunk may delay the decodes. Nothing is recorded yet.

        `max_pauses`: how many times in a row a prefill may be paused at peak load; 0 = never.
        """
        raise NotImplementedError("task 2.7.5")

    def record_chunk(self, chunk_size: int, chunk_time: float) -> None:
        """Remember that `chunk_size` tokens took `chunk_time` seconds; only the last 16 chunks count."""
        raise NotImplementedError("task 2.7.5")

    def select_chunk_size(self, base_chunk_size: int, decode_pressure: float) -> int:
        """The next chunk size, given the share of decode slots in use (0 to 1).

        From 0.8 on: half of the base, but not below 32 and never more than the base; or 0, a pause, when a
        chunk of that size is predicted to miss the target and fewer than `max_pauses` pauses came just
        before. Below: twice the base, but not above 512 and never less than the base, if a chunk of twice
        the base is predicted to meet the target (mean recent time per token times its size); else the base.
        Nothing is predicted before a chunk is recorded. Raises ValueError for a pressure outside 0 to 1.
        """
        raise NotImplementedError("task 2.7.5")


class ChunkedPrefillMetrics:
    """Counts chunks and decode steps and how long they took."""

    def __init__(self) -> None:
        """Sets prefill_chunks_processed, prefill_tokens_processed and decode_requests_served to 0,
        avg_chunk_time and avg_decode_time to None: there is nothing to average yet.
        """
        raise NotImplementedError("task 2.7.6")

    def record_prefill_chunk(self, chunk_time: float, chunk_size: int) -> None:
        """Count a chunk; `avg_chunk_time` becomes 0.9 of its value plus 0.1 of the new time, in seconds.

        The first chunk sets the average: starting from 0 would drag it down for dozens of chunks.
        """
        raise NotImplementedError("task 2.7.6")

    def record_decode_step(self, decode_time: float) -> None:
        """Count a decode step; `avg_decode_time` is kept as `avg_chunk_time` is."""
        raise NotImplementedError("task 2.7.6")

    @property
    def prefill_to_decode_ratio(self) -> float | None:
        """Prompt tokens computed per decode step; None before the first decode step."""
        raise NotImplementedError("task 2.7.6")

    def get_interleaving_ratio(self) -> float:
        """Chunks per decode step; infinite while there was no decode step."""
        raise NotImplementedError("task 2.7.6")
