"""How a prompt is cut into chunks: where, with which mask and how large; and metrics of the chunks."""

from collections.abc import Iterator

import mlx.core as mx

from tiny_llm_lab.types import BatchSettings, ChunkPolicy, ModelConfig, PrefillMetrics


def chunk_spans(prompt_len: int, prefill_step: int, start: int = 0) -> Iterator[tuple[int, int]]:
    """Cut tokens `start` to `prompt_len` into chunks of `prefill_step`. The last chunk may be shorter.

    Yields (start, end) pairs in absolute positions, end exclusive, in order and without gaps:
    (10, 4) -> (0, 4), (4, 8), (8, 10). Raises ValueError immediately if `start` is negative, no token is
    left, or `prefill_step` is below 1.
    """
    raise NotImplementedError("task 2.7.1")


def chunked_attention_mask(
    chunk_start: int, chunk_size: int, total_length: int, dtype: mx.Dtype = mx.float32
) -> mx.array:
    """Returns the additive mask of the chunk at `chunk_start` in a prompt of `total_length` tokens.

    Its shape is [chunk_size, chunk_start + chunk_size]. Each token of the chunk sees all earlier chunks and
    the chunk up to itself (0), and nothing later (-inf), as with mask="causal" in MLX. `dtype` must be the
    queries' dtype. Raises ValueError if the chunk is empty or extends beyond the prompt.
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
    """Returns a chunk size by a rule of thumb.

    64 if at least 80 % of the `batch_size` rows decode; else 256 for a prompt of more than 2,048 tokens; else
    128. Never more than `available_memory` bytes hold at `bytes_per_token` (activations and cache together).
    Raises ValueError if the memory does not hold one token.
    """
    raise NotImplementedError("task 2.7.5")


def next_chunk_size(settings: BatchSettings, config: ModelConfig, prompt_len: int, num_decoding: int) -> int:
    """Returns the most tokens of a prompt's next chunk while `num_decoding` requests decode; 0 = a pause.

    The base is settings.prefill_step; if that is None, `select_optimal_chunk_size` chooses it for
    settings.prefill_memory bytes. settings.chunk_policy may change it, given the share of the batch_size rows
    that decode. It may pause only while requests decode; otherwise a chunk has 1 token or more.
    """
    raise NotImplementedError("task 2.7.4")


class AdaptiveChunker(ChunkPolicy):
    """Chooses the next chunk size from the cost of recent chunks and the share of rows that decode."""

    def __init__(self, decode_latency_target: float = 0.05, max_pauses: int = 0) -> None:
        """A chunk may delay the decodes by `decode_latency_target` seconds. Nothing is recorded yet.

        `max_pauses` is how many times in a row a prefill may be paused at peak load; 0 = never.
        """
        raise NotImplementedError("task 2.7.5")

    def record_chunk(self, chunk_size: int, chunk_time: float) -> None:
        """Remember that `chunk_size` tokens took `chunk_time` seconds. Only the last 16 chunks count."""
        raise NotImplementedError("task 2.7.5")

    def select_chunk_size(self, base_chunk_size: int, decode_pressure: float) -> int:
        """Returns the next chunk size, given the share of rows that decode (0 to 1).

        At 0.8 or more: half the base, but not below 32 and never more than the base; or 0, a pause, if a
        chunk of that size is predicted to take longer than the target and fewer than `max_pauses` pauses came
        just before. Below 0.8: twice the base, but not above 512 and never less than the base, if a chunk of
        twice the base is predicted to meet the target; otherwise the base. The prediction is the mean recent
        time per token times the size. There is no prediction before a chunk is recorded. Raises ValueError
        for a pressure outside 0 to 1.
        """
        raise NotImplementedError("task 2.7.5")


class ChunkedPrefillMetrics(PrefillMetrics):
    """Counts chunks and decode steps and how long they took."""

    def __init__(self) -> None:
        """Sets prefill_chunks_processed, prefill_tokens_processed and decode_requests_served to 0, and
        avg_chunk_time and avg_decode_time to None, because there is nothing to average yet.
        """
        raise NotImplementedError("task 2.7.6")

    def record_prefill_chunk(self, chunk_time: float, chunk_size: int) -> None:
        """Count a chunk. `avg_chunk_time` becomes 0.9 of its value plus 0.1 of the new time, in seconds.

        The first chunk sets the average, because starting from 0 would keep it too low for dozens of chunks.
        """
        raise NotImplementedError("task 2.7.6")

    def record_decode_step(self, decode_time: float) -> None:
        """Count a decode step, and update `avg_decode_time` the way `avg_chunk_time` is updated."""
        raise NotImplementedError("task 2.7.6")

    @property
    def prefill_to_decode_ratio(self) -> float | None:
        """Prompt tokens computed per decode step; None before the first decode step."""
        raise NotImplementedError("task 2.7.6")

    def get_interleaving_ratio(self) -> float:
        """Returns chunks per decode step; infinite before the first decode step."""
        raise NotImplementedError("task 2.7.6")
