"""What week 2's loop calls on a chunk policy and on a counter of chunks."""

from typing import Protocol


class ChunkPolicy(Protocol):
    """Chooses how many tokens the next prefill chunk may have."""

    def select_chunk_size(self, base_chunk_size: int, decode_pressure: float) -> int:
        """Returns the next size, given the configured size and the share of rows that decode; 0 = a pause."""

    def record_chunk(self, chunk_size: int, chunk_time: float) -> None:
        """Learn that `chunk_size` tokens took `chunk_time` seconds."""


class FixedChunks:
    """The default `ChunkPolicy` of a loop: every chunk has the configured size."""

    def select_chunk_size(self, base_chunk_size: int, decode_pressure: float) -> int:
        return base_chunk_size

    def record_chunk(self, chunk_size: int, chunk_time: float) -> None:
        """Nothing is learned."""


class PrefillMetrics(Protocol):
    """Counts chunks and decode steps. Times are seconds."""

    def record_prefill_chunk(self, chunk_time: float, chunk_size: int) -> None: ...
    def record_decode_step(self, decode_time: float) -> None: ...


class NoMetrics:
    """`PrefillMetrics` that count nothing."""

    def record_prefill_chunk(self, chunk_time: float, chunk_size: int) -> None:
        """Nothing is counted."""

    def record_decode_step(self, decode_time: float) -> None:
        """Nothing is counted."""
