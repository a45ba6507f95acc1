"""An engine that is compared with others on the same requests; ours."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import mlx.core as mx

from tiny_llm_lab.bench.run import Request, Run
from tiny_llm_lab.bench.sample import serve_with_engine
from tiny_llm_lab.types import SchedulerConfig

from .config import BenchConfig, free_memory


@dataclass(frozen=True)
class PeerTarget:
    """An engine: `run` serves requests once; the run, the tokens that it computed, and its peak memory."""

    name: str
    run: Callable[[Sequence[Request]], tuple[Run, int, float]]
    note: str = ""


def own_target(config: BenchConfig) -> PeerTarget:
    """A budget of one chunk and all slots; blocks for all requests at once."""

    def run(requests: Sequence[Request]) -> tuple[Run, int, float]:
        slots = len(requests)
        scheduler = SchedulerConfig(
            max_num_batched_tokens=config.chunk + slots,
            max_num_seqs=slots,
            max_model_len=max(request.num_tokens for request in requests),
        )
        held_bytes = free_memory()
        engine = config.engine(scheduler, useful_tokens(requests) + slots)
        try:
            found, log = serve_with_engine(engine, requests, config.seed)
        finally:
            engine.release()
        return found, log.num_computed_tokens, mx.get_peak_memory() - held_bytes

    return PeerTarget("engine", run)


def useful_tokens(requests: Sequence[Request]) -> int:
    """What has to be computed at least: everything but each answer's last token."""
    return sum(request.num_tokens - 1 for request in requests)
