"""How a prompt is cut into chunks: where, with which mask and how large; and metrics of the chunks."""

from collections import deque
from collections.abc import Iterator

import mlx.core as mx

from tiny_llm_lab.types import BatchSettings, ChunkPolicy, ModelConfig, PrefillMetrics

# The chunk sizes of `select_optimal_chunk_size`.
_BUSY_CHUNK, _DEFAULT_CHUNK, _LONG_PROMPT_CHUNK = 64, 128, 256
_LONG_PROMPT = 2048
# At this share of rows in use, decodes are protected: four of five, while the fifth is in prefill.
_HIGH_PRESSURE = 0.8
# The limits within which `AdaptiveChunker` halves and doubles, and how many chunks it remembers.
_SMALLEST_CHUNK, _LARGEST_CHUNK, _WINDOW = 32, 512, 16
# The weight of the newest chunk in the moving average of `ChunkedPrefillMetrics`.
_NEWEST = 0.1


def chunk_spans(prompt_len: int, prefill_step: int, start: int = 0) -> Iterator[tuple[int, int]]:
    """Cut tokens `start` to `prompt_len` into chunks of `prefill_step`. The last chunk may be shorter.

    Yields (start, end) pairs in absolute positions, end exclusive, in order and without gaps:
    (10, 4) -> (0, 4), (4, 8), (8, 10). Raises ValueError immediately if `start` is negative, no token is
    left, or `prefill_step` is below 1.
    """
    if not 0 <= start < prompt_len or prefill_step < 1:
        raise ValueError(f"cannot cut tokens {start} to {prompt_len} into chunks of {prefill_step}")
    return (
        (first, min(first + prefill_step, prompt_len)) for first in range(start, prompt_len, prefill_step)
    )


def chunked_attention_mask(
    chunk_start: int, chunk_size: int, total_length: int, dtype: mx.Dtype = mx.float32
) -> mx.array:
    """Returns the additive mask of the chunk at `chunk_start` in a prompt of `total_length` tokens.

    Its shape is [chunk_size, chunk_start + chunk_size]. Each token of the chunk sees all earlier chunks and
    the chunk up to itself (0), and nothing later (-inf), as with mask="causal" in MLX. `dtype` must be the
    queries' dtype. Raises ValueError if the chunk is empty or extends beyond the prompt.
    """
    end = chunk_start + chunk_size
    if chunk_start < 0 or chunk_size < 1 or end > total_length:
        raise ValueError(f"chunk of {chunk_size} at {chunk_start} is not among {total_length} prompt tokens")
    visible = mx.arange(end) <= mx.arange(chunk_start, end)[:, None]
    return mx.where(visible, 0.0, -mx.inf).astype(dtype)


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
    if active_decode_requests >= _HIGH_PRESSURE * batch_size:
        wanted = _BUSY_CHUNK
    elif sequence_length > _LONG_PROMPT:
        wanted = _LONG_PROMPT_CHUNK
    else:
        wanted = _DEFAULT_CHUNK
    room = available_memory // bytes_per_token
    if room < 1:
        raise ValueError(f"{available_memory} bytes are too few for one token of {bytes_per_token} bytes")
    return min(wanted, room)


def next_chunk_size(settings: BatchSettings, config: ModelConfig, prompt_len: int, num_decoding: int) -> int:
    """Returns the most tokens of a prompt's next chunk while `num_decoding` requests decode; 0 = a pause.

    The base is settings.prefill_step; if that is None, `select_optimal_chunk_size` chooses it for
    settings.prefill_memory bytes. settings.chunk_policy may change it, given the share of the batch_size rows
    that decode. It may pause only while requests decode; otherwise a chunk has 1 token or more.
    """
    base = settings.prefill_step or select_optimal_chunk_size(
        prompt_len,
        settings.prefill_memory,
        num_decoding,
        batch_size=settings.batch_size,
        bytes_per_token=_bytes_per_token(config),
    )
    size = settings.chunk_policy.select_chunk_size(base, num_decoding / settings.batch_size)
    return size if num_decoding else max(1, size)


class AdaptiveChunker(ChunkPolicy):
    """Chooses the next chunk size from the cost of recent chunks and the share of rows that decode."""

    def __init__(self, decode_latency_target: float = 0.05, max_pauses: int = 0) -> None:
        """A chunk may delay the decodes by `decode_latency_target` seconds. Nothing is recorded yet.

        `max_pauses` is how many times in a row a prefill may be paused at peak load; 0 = never.
        """
        self.decode_latency_target = decode_latency_target
        self.max_pauses = max_pauses
        self.num_pauses = 0
        self.recent_chunks: deque[tuple[int, float]] = deque(maxlen=_WINDOW)

    def record_chunk(self, chunk_size: int, chunk_time: float) -> None:
        """Remember that `chunk_size` tokens took `chunk_time` seconds. Only the last 16 chunks count."""
        self.recent_chunks.append((chunk_size, chunk_time))

    def select_chunk_size(self, base_chunk_size: int, decode_pressure: float) -> int:
        """Returns the next chunk size, given the share of rows that decode (0 to 1).

        At 0.8 or more: half the base, but not below 32 and never more than the base; or 0, a pause, if a
        chunk of that size is predicted to take longer than the target and fewer than `max_pauses` pauses came
        just before. Below 0.8: twice the base, but not above 512 and never less than the base, if a chunk of
        twice the base is predicted to meet the target; otherwise the base. The prediction is the mean recent
        time per token times the size. There is no prediction before a chunk is recorded. Raises ValueError
        for a pressure outside 0 to 1.
        """
        if not 0 <= decode_pressure <= 1:
            raise ValueError(f"decode_pressure must be 0 to 1, not {decode_pressure}")
        if decode_pressure >= _HIGH_PRESSURE:
            return self._under_pressure(base_chunk_size)
        self.num_pauses = 0
        if self.recent_chunks and self._predicted_s(2 * base_chunk_size) <= self.decode_latency_target:
            return max(base_chunk_size, min(_LARGEST_CHUNK, 2 * base_chunk_size))
        return base_chunk_size

    def _under_pressure(self, base_chunk_size: int) -> int:
        size = min(base_chunk_size, max(_SMALLEST_CHUNK, base_chunk_size // 2))
        is_late = bool(self.recent_chunks) and self._predicted_s(size) > self.decode_latency_target
        if is_late and self.num_pauses < self.max_pauses:
            self.num_pauses += 1
            return 0
        self.num_pauses = 0
        return size

    def _predicted_s(self, chunk_size: int) -> float:
        tokens = sum(size for size, _ in self.recent_chunks)
        return chunk_size * sum(seconds for _, seconds in self.recent_chunks) / tokens


class ChunkedPrefillMetrics(PrefillMetrics):
    """Counts chunks and decode steps and how long they took."""

    def __init__(self) -> None:
        """Sets prefill_chunks_processed, prefill_tokens_processed and decode_requests_served to 0, and
        avg_chunk_time and avg_decode_time to None, because there is nothing to average yet.
        """
        self.prefill_chunks_processed = 0
        self.prefill_tokens_processed = 0
        self.decode_requests_served = 0
        self.avg_chunk_time: float | None = None
        self.avg_decode_time: float | None = None

    def record_prefill_chunk(self, chunk_time: float, chunk_size: int) -> None:
        """Count a chunk. `avg_chunk_time` becomes 0.9 of its value plus 0.1 of the new time, in seconds.

        The first chunk sets the average, because starting from 0 would keep it too low for dozens of chunks.
        """
        self.prefill_chunks_processed += 1
        self.prefill_tokens_processed += chunk_size
        self.avg_chunk_time = _moved_towards(chunk_time, self.avg_chunk_time)

    def record_decode_step(self, decode_time: float) -> None:
        """Count a decode step, and update `avg_decode_time` the way `avg_chunk_time` is updated."""
        self.decode_requests_served += 1
        self.avg_decode_time = _moved_towards(decode_time, self.avg_decode_time)

    @property
    def prefill_to_decode_ratio(self) -> float | None:
        """Prompt tokens computed per decode step; None before the first decode step."""
        if self.decode_requests_served == 0:
            return None
        return self.prefill_tokens_processed / self.decode_requests_served

    def get_interleaving_ratio(self) -> float:
        """Returns chunks per decode step; infinite before the first decode step."""
        if self.decode_requests_served == 0:
            return float("inf")
        return self.prefill_chunks_processed / self.decode_requests_served


def _bytes_per_token(config: ModelConfig) -> int:
    """Returns the most bytes a token of a chunk takes: all layers' KV, one layer's activations, float32."""
    kv = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim
    return 4 * (kv + config.hidden_size + 2 * config.intermediate_size)


def _moved_towards(value: float, average: float | None) -> float:
    return value if average is None else average * (1 - _NEWEST) + value * _NEWEST
