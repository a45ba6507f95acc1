"""What one measurement of `bench` asks for and shows, in round numbers."""

from typing import Any

from tiny_llm_lab.measure.bench.run import Chunk, Run
from tiny_llm_lab.measure.bench.spec import Schedule, Spec, at_once
from tiny_llm_lab.runtime.native.compiling.limits import Limits
from tiny_llm_lab.types import Timing

SPEC = Spec("random:qwen3-shrunk,bits=4", "ref", "cpu", None, Schedule(16), 1, at_once(1, 16, 16))
LIMITS = Limits(2, 20.0, 100.0, None, 200.0)


def run_of_spec(spec: Spec, prefill_s: float = 0.16, step_s: float = 0.1, **changes: Any) -> Run:
    """Equal requests: their prompts are computed together, then every step takes equally long."""
    num_tokens = spec.requests[0].max_tokens
    token_s = tuple(prefill_s + number * step_s for number in range(num_tokens))
    chunks = tuple(Chunk(idx, each.prompt_len, 0.0, prefill_s) for idx, each in enumerate(spec.requests))
    kept: dict[str, Any] = {
        "weights_bytes": 900_000_000,
        "kv_bytes_per_token": 2_000_000,
        "facts": {"device": "cpu", "dtype": "float32"},
    }
    timings = (Timing(0.0, token_s),) * len(spec.requests)
    return Run(spec.requests, timings, chunks, **kept | changes)
