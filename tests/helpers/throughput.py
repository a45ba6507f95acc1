"""What one measurement of `bench` asks for and shows, in round numbers."""

from typing import Any

import pytest

from tiny_llm_lab.cli import dispatch as cli
from tiny_llm_lab.cli.commands import COMMANDS
from tiny_llm_lab.measure.bench import fresh
from tiny_llm_lab.measure.bench.run import Chunk, Run
from tiny_llm_lab.measure.bench.spec import Schedule, Spec, at_once
from tiny_llm_lab.measure.bench.throughput import command
from tiny_llm_lab.runtime.console.commands import Catalogue
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


TINY = ["bench", "--model", "random:qwen3-shrunk", "--device", "cpu", "--prompt-len", "16"]


class Children:
    """Stands in for the processes; `fail` maps a variant to what its process ends with."""

    def __init__(self, fail: dict[str, Exception] | None = None) -> None:
        self.asked: list[Spec] = []
        self.fail = fail or {}

    def __call__(self, measure: object, spec: Spec, threads: int) -> Run:
        assert threads == spec.threads > 0, "no engine may have more threads than the others"
        self.asked.append(spec)
        if failure := self.fail.get(spec.variant or spec.solution):
            raise failure
        return run_of_spec(spec)


def bench(
    monkeypatch: pytest.MonkeyPatch, children: Children, *argv: str, catalogue: Catalogue = COMMANDS
) -> int:
    """The exit code of `bench` with such processes, two rounds of them."""
    monkeypatch.setattr(fresh, "run_fresh", children)
    monkeypatch.setattr(command, "measure", lambda threads: LIMITS)
    return cli.main([*TINY, "--repeats", "2", *argv], catalogue)
