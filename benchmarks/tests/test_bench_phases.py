"""bench-engine's table of the two phases: what the kernels count, and what is said to be the limit."""

from types import ModuleType
from typing import cast

import mlx.core as mx
from tests.helpers.devices import on_cpu

from benchmarks.engine import phases
from benchmarks.engine.config import BenchConfig
from tiny_llm_lab import load_checkpoint, load_solution
from tiny_llm_lab.measure.bench.sample import weights_bytes
from tiny_llm_lab.measure.bench.spec import Spec
from tiny_llm_lab.runtime.native.compiling.limits import Limits
from tiny_llm_lab.runtime.task_names import TaskNames
from tiny_llm_lab.types import QuantizedWeights

REF = TaskNames(cast(ModuleType, load_solution("ref")))


def section_of(monkeypatch, kernels, balance):
    limits = Limits(2, read_gb_s=1.0, f32_gflop_s=balance, bf16_gflop_s=None, int8_gop_s=None)
    monkeypatch.setattr(phases, "measure", lambda threads: limits)
    with on_cpu(kernels):
        checkpoint = load_checkpoint("default")
        model = REF.build_model(load_checkpoint("default"))
        config = BenchConfig(REF, model, checkpoint, Spec("default", "ref"), rounds=1, context=64, streams=3)
        return phases.phases(config), checkpoint


def test_bytes_and_operations_of_a_pass_and_what_memory_bounds(monkeypatch):
    section, checkpoint = section_of(monkeypatch, "cpp", balance=3.0)
    rows = {row.name: {key: row.median(key) for key in row.samples} for row in section.rows}
    assert list(rows) == ["prefill of 16", "prefill of 128", "prefill of 512", "decode of 1", "decode of 3"]
    read, weights = weights_bytes(checkpoint), checkpoint.weights.items()
    numbers = sum(
        mx.dequantize(w.weight, w.scales, w.biases, w.group_size, w.bits).size
        if isinstance(w, QuantizedWeights)
        else w.size
        for name, w in weights
        if checkpoint.config.tie_word_embeddings or not name.startswith("model.embed")
    )
    for name, row in rows.items():
        tokens = int(name.split()[-1])
        assert row["tokens"] == tokens and row["bytes"] > 0.95 * read
        assert row["intensity"] * row["bytes"] < 3 * numbers * tokens
    one, three = rows["decode of 1"], rows["decode of 3"]
    assert one["bytes"] < 1.5 * read and one["intensity"] * one["bytes"] > 1.9 * numbers
    assert 2 * one["intensity"] < three["intensity"] < rows["prefill of 512"]["intensity"]
    assert one["intensity"] < 3.0 < rows["prefill of 16"]["intensity"]
    bound = [name for name in rows if rows[name]["intensity"] < 3.0]
    assert section.notes[0].endswith(
        f"does 3.0 float32 operations per byte: memory bounds {', '.join(bound)}."
    )


def test_without_the_kernels_it_says_what_is_not_counted(monkeypatch):
    section, _ = section_of(monkeypatch, "off", 1.0)
    assert section.notes == [phases.UNKNOWN] and "bytes" not in section.rows[0].samples
