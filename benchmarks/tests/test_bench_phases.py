"""bench-engine's table of the two phases: what the kernels count, and what is said to be the limit."""

from types import ModuleType
from typing import cast

from tests.helpers.devices import on_cpu

from benchmarks.engine import phases
from benchmarks.engine.config import BenchConfig
from tiny_llm_lab import load_checkpoint, load_solution
from tiny_llm_lab.measure.bench.sample import weights_bytes
from tiny_llm_lab.measure.bench.spec import Spec
from tiny_llm_lab.runtime.native.compiling.limits import Limits
from tiny_llm_lab.runtime.task_names import TaskNames

REF = TaskNames(cast(ModuleType, load_solution("ref")))


def section_of(monkeypatch, kernels):
    limits = Limits(2, read_gb_s=1.0, f32_gflop_s=3.0, bf16_gflop_s=None, int8_gop_s=None)
    monkeypatch.setattr(phases, "measure", lambda threads: limits)
    with on_cpu(kernels):
        model = REF.build_model(load_checkpoint("default"))
        config = BenchConfig(REF, model, None, Spec("default", "ref"), rounds=1, context=64, streams=3)
        return phases.phases(config)


def test_bytes_and_operations_of_a_pass_and_what_memory_bounds(monkeypatch):
    section, checkpoint = section_of(monkeypatch, "cpp"), load_checkpoint("default")
    rows = {row.name: {key: row.median(key) for key in row.samples} for row in section.rows}
    read, numbers = weights_bytes(checkpoint), sum(w.size for w in checkpoint.weights.values())
    for name, row in rows.items():
        assert row["tokens"] == int(name.split()[-1]) and row["bytes"] > 0.95 * read
        assert row["intensity"] * row["bytes"] < 3 * numbers * row["tokens"]
    one, *more = (rows[name]["intensity"] for name in ("decode of 1", "decode of 3", "prefill of 512"))
    assert rows["decode of 1"]["bytes"] < 1.5 * read and one * rows["decode of 1"]["bytes"] > 1.9 * numbers
    assert 2 * one < more[0] < more[1] and one < 3.0 < rows["prefill of 16"]["intensity"]
    bound = [name for name in rows if rows[name]["intensity"] < 3.0]
    assert section.notes[0].endswith(f"3.0 float32 operations per byte: memory bounds {', '.join(bound)}.")


def test_without_the_kernels_it_says_what_is_not_counted(monkeypatch):
    section = section_of(monkeypatch, "off")
    assert section.notes == [phases.UNKNOWN] and "bytes" not in section.rows[0].samples
