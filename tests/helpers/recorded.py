"""A recorded run of three requests with round numbers."""

from tiny_llm_lab.measure.bench.run import Chunk, Run
from tiny_llm_lab.measure.traffic.request import Request
from tiny_llm_lab.types import Timing


def recorded(stall_s: float = 2.0) -> Run:
    """One early request stalls for `stall_s` while the long one is computed; a late one arrives in it."""
    end_s = 2.0 + stall_s
    return Run(
        requests=(Request("early", 6, 5), Request("long", 50, 2, 2.0), Request("late", 6, 2, 2.5)),
        timings=(
            Timing(0.0, (1.0, 1.5, 2.0, end_s, end_s + 0.5)),
            Timing(2.0, (end_s, end_s + 0.5)),
            Timing(2.5, (end_s + 0.5, end_s + 1.0)),
        ),
        chunks=(
            Chunk(0, 6, 0.0, 1.0),
            Chunk(1, 25, 2.0, 2.0 + stall_s / 2),
            Chunk(1, 25, 2.0 + stall_s / 2, end_s),
        ),
        facts={"device": "cpu", "dtype": "float32"},
    )
