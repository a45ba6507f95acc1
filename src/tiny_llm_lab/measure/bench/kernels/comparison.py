"""The least time of an operator, the times of its variants, and the table of both."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Final

import mlx.core as mx

from tiny_llm_lab.measure.bench.harness import Variant, time_variants
from tiny_llm_lab.measure.bench.report import TIME, Column, Row, Section
from tiny_llm_lab.runtime import native
from tiny_llm_lab.runtime.console.todo import find_todo
from tiny_llm_lab.runtime.native.compiling.limits import Limits, measure

_COLUMNS: Final = (
    TIME,
    Column("gb_s", "GB/s", ".2f"),
    Column("gflop_s", "GFLOP/s", ".2f"),
    Column("share_of_limit", "of limit", ".1%"),
    Column("speedup", "× step before", ".2f"),
)
_PART: Final = Column("part_seconds", "ns/token/head", ".1f", 1e9)
_ROUNDS: Final = 9
_SLOW_S: Final = 0.3  # we repeat a variant this slow less often, since its spread is small
_INTEGERS: Final = (
    "More than 100 % is possible: 16-bit activations are multiplied as integers, "
    "and a vector holds twice as many of those."
)


@dataclass(frozen=True)
class Cost:
    """The bytes and operations of any variant; `allows_integers` if it may compute without float32."""

    num_bytes: float
    flops: float
    allows_integers: bool = False

    def limit(self, limits: Limits) -> tuple[float, str]:
        """The least seconds, and what sets them, memory or arithmetic."""
        memory_s = self.num_bytes / (limits.read_gb_s * 1e9)
        arithmetic_s = self.flops / (limits.f32_gflop_s * 1e9)
        if memory_s > arithmetic_s:
            return memory_s, f"memory, {limits.read_gb_s:.1f} GB/s"
        return arithmetic_s, f"f32 FMA peak, {limits.f32_gflop_s:.0f} GFLOP/s"


@dataclass(frozen=True)
class KernelComparison:
    """An operator on given sizes, and its variants, each made from the one before."""

    title: str
    cost: Cost
    variants: Sequence[Variant]
    num_parts: int = 0  # tokens times heads, where the time of one is shown


def measured(compared: KernelComparison, threads: int | None) -> Section:
    """The variants and, on a CPU, the limits of `threads` threads, measured just before them."""
    limits = None if threads is None else measure(threads)
    variants, todos = written(compared.variants)
    return section_of(compared, limits, time_variants(variants, _ROUNDS, slow_s=_SLOW_S), todos)


def written(variants: Sequence[Variant]) -> tuple[list[Variant], dict[str, str]]:
    """Run each variant once; returns those that we can time, and what the others lack, by name."""
    found, todos = [], {}
    for variant in variants:
        try:
            mx.eval(variant.run())
        except RuntimeError as error:
            todo = find_todo(error, Path())
            if todo is None:
                raise
            todos[variant.name] = f"TODO {todo.task}"
            native.binding().settle()
        else:
            found.append(variant)
    return found, todos


def section_of(
    compared: KernelComparison,
    limits: Limits | None,
    seconds: Mapping[str, Sequence[float]],
    todos: Mapping[str, str],
) -> Section:
    """A row for the limit and one for each variant, compared with the last variant before it that ran."""
    cost = compared.cost
    limit_s, bound = (None, "unknown") if limits is None else cost.limit(limits)
    rows = [] if limit_s is None else [_row("limit", [limit_s], compared, limit_s, None)]
    before_s = None
    for variant in compared.variants:
        if variant.name in todos:
            rows.append(Row(f"{variant.name}: {todos[variant.name]}", {}))
            continue
        rows.append(_row(variant.name, seconds[variant.name], compared, limit_s, before_s))
        before_s = rows[-1].median("seconds")
    passes = limit_s is not None and any(row.samples and row.median("seconds") < limit_s for row in rows)
    work = f"{cost.num_bytes / 1e6:.2f} MB to move, {cost.flops / 1e6:.1f} MFLOP to compute; limit: {bound}"
    return Section(
        "kernels",
        f"{compared.title}\n{work}",
        (*_COLUMNS, _PART) if compared.num_parts else _COLUMNS,
        rows,
        notes=[_INTEGERS] if passes and cost.allows_integers and bound.startswith("f32") else [],
        data={**asdict(cost), "limit_s": limit_s, "bound": bound, "todos": dict(todos)},
    )


def _row(
    name: str,
    seconds: Sequence[float],
    compared: KernelComparison,
    limit_s: float | None,
    before_s: float | None,
) -> Row:
    middle_s, cost, parts = median(seconds), compared.cost, compared.num_parts
    return Row(
        name,
        {
            "seconds": list(seconds),
            "gb_s": [cost.num_bytes / middle_s / 1e9],
            "gflop_s": [cost.flops / middle_s / 1e9],
            "share_of_limit": [] if limit_s is None else [limit_s / middle_s],
            "speedup": [] if before_s is None else [before_s / middle_s],
            **({"part_seconds": [middle_s / parts]} if parts else {}),
        },
    )
