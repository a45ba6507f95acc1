"""The time of a run per operator, and how close each comes to the machine's limits."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import mlx.core as mx

from tiny_llm_lab.runtime import native
from tiny_llm_lab.runtime.native.compiling.limits import Limits
from tiny_llm_lab.runtime.native.ops import Note


@dataclass
class Line:
    """All calls of one operator."""

    operator: str
    calls: int = 0
    seconds: float = 0.0
    num_bytes: float = 0.0
    flops: float = 0.0

    def least_s(self, limits: Limits) -> float:
        """The time at the limit of memory or arithmetic, whichever is longer."""
        return max(self.num_bytes / limits.read_gb_s, self.flops / limits.f32_gflop_s) / 1e9


@contextmanager
def profile() -> Iterator[list[Note]]:
    """Time every operator of the kernels; the list is filled at the end of the block."""
    notes: list[Note] = []
    binding = native.binding()
    binding.start_profile()
    try:
        yield notes
    finally:
        mx.synchronize()
        notes += binding.stop_profile()


def lines(notes: Iterable[Note]) -> list[Line]:
    """One line per operator, the longest first. The work tells small and large products apart."""
    results: dict[str, Line] = defaultdict(lambda: Line(""))
    for operator, seconds, num_bytes, flops in notes:
        line = results[operator]
        line.operator = operator
        line.calls += 1
        line.seconds += seconds
        line.num_bytes += num_bytes
        line.flops += flops
    return sorted(results.values(), key=lambda line: -line.seconds)


def table(notes: list[Note], total_s: float, limits: Limits | None) -> list[str]:
    """Rows of text; `total_s` is the time of the whole run, most of which operators should fill."""
    head = f"{'operator':<22}{'calls':>7}{'ms':>10}{'share':>8}{'GB/s':>8}{'GFLOP/s':>9}{'of limit':>10}"
    rows, result = [head], lines(notes)
    for line in result:
        share = f"{line.least_s(limits) / line.seconds:.0%}" if limits and line.seconds else "-"
        rows.append(
            f"{line.operator:<22}{line.calls:>7}{line.seconds * 1e3:>10.1f}{line.seconds / total_s:>8.1%}"
            f"{line.num_bytes / line.seconds / 1e9:>8.1f}{line.flops / line.seconds / 1e9:>9.1f}{share:>10}"
        )
    spent = sum(line.seconds for line in result)
    rows.append(f"{'between operators':<29}{(total_s - spent) * 1e3:>10.1f}{1 - spent / total_s:>8.1%}")
    if limits:
        rows.append(f"limit: {limits.read_gb_s:.1f} GB/s read, {limits.f32_gflop_s:.0f} GFLOP/s of float32")
    return rows
