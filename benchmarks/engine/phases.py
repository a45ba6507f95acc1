"""What prefill and decode ask of a machine: tokens a pass, operations per byte, and what bounds each."""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Final

from benchmarks.engine.config import BenchConfig
from tiny_llm_lab.measure.bench.report import TIME, Column, Row, Samples, Section
from tiny_llm_lab.runtime.native.compiling.limits import measure
from tiny_llm_lab.runtime.native.cpp_ops import CppOps
from tiny_llm_lab.runtime.native.profile import profile
from tiny_llm_lab.runtime.native.settings import usable_cores
from tiny_llm_lab.runtime.steps.runner import Part, Step, decodes

_PROMPTS: Final = (16, 128, 512)  # tokens of a pass over a prompt
_COLUMNS: Final = (
    Column("tokens", "tokens a pass", ".0f"),
    TIME,
    Column("tok_s", "tok/s", ".0f"),
    Column("bytes", "MB a pass", ".0f", 1e-6),
    Column("intensity", "operations per byte", ".1f"),
)
UNKNOWN: Final = "Only the C++ kernels count bytes and operations: choose --device cpu."


def phases(config: BenchConfig) -> Section:
    """Passes over prompts and decode steps, with the bytes and operations that the kernels count."""
    config.require_room(max(config.context + 1, *_PROMPTS), "--context")
    steps: dict[str, Step] = {f"prefill of {n}": (Part(0, n, is_drawn=True),) for n in _PROMPTS}
    steps |= {f"decode of {n}": decodes(n, config.context) for n in sorted({1, config.streams})}
    seconds = config.time_steps({name: [step] for name, step in steps.items()})
    counted = _counted(config, steps) if isinstance(config.model.ops, CppOps) else {}
    rows = []
    for name, step in steps.items():
        tokens, took_s = sum(part.new for part in step), seconds[name]
        samples: dict[str, Samples] = {
            "tokens": [tokens],
            TIME.key: took_s,
            "tok_s": [tokens / median(took_s)],
        }
        rows.append(Row(name, samples | counted.get(name, {})))
    title = f"phases: what a pass reads and computes, decodes at context {config.context}"
    note = _bound(config, rows) if counted else UNKNOWN
    return Section("phases", title, _COLUMNS, rows, notes=[note])


def _counted(config: BenchConfig, steps: Mapping[str, Step]) -> dict[str, dict[str, Samples]]:
    counted: dict[str, dict[str, Samples]] = {}
    with config.runner(list(steps.values())) as runner:
        for name, step in steps.items():
            with profile() as notes:
                runner.run(step)
            count, operations = sum(note[2] for note in notes), sum(note[3] for note in notes)
            counted[name] = {"bytes": [count], "intensity": [operations / count]}
    return counted


def _bound(config: BenchConfig, rows: Sequence[Row]) -> str:
    limits = measure(config.spec.threads or usable_cores())
    balance = limits.f32_gflop_s / limits.read_gb_s
    bound = ", ".join(row.name for row in rows if row.median("intensity") < balance)
    return f"This machine does {balance:.1f} float32 operations per byte: memory bounds {bound or 'none'}."
