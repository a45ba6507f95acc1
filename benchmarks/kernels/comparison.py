"""The least time of an operator, the times of its variants, and the table of both."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Final

import mlx.core as mx

from benchmarks.harness import Variant, time_variants
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
_BYTE_LIMIT: Final = "limit, 8 bits"
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

    def limit(self, limits: Limits | None, in_bytes: bool = False) -> tuple[float | None, str]:
        """The least seconds, and what sets them, memory or arithmetic; None where we don't know.

        `in_bytes`: of a variant that multiplies bytes.
        """
        if limits is None or (rate := limits.int8_gop_s if in_bytes else limits.f32_gflop_s) is None:
            return None, "unknown"
        memory_s, arithmetic_s = self.num_bytes / (limits.read_gb_s * 1e9), self.flops / (rate * 1e9)
        if memory_s > arithmetic_s:
            return memory_s, f"memory, {limits.read_gb_s:.1f} GB/s"
        peak = f"int8 peak, {rate:.0f} GOP/s" if in_bytes else f"f32 FMA peak, {rate:.0f} GFLOP/s"
        return arithmetic_s, peak


@dataclass(frozen=True)
class KernelComparison:
    """An operator on given sizes, and its variants, each made from the one before."""

    title: str
    cost: Cost
    variants: Sequence[Variant]
    num_parts: int = 0  # tokens times heads, where the time of one is shown
    byte_variants: Sequence[Variant] = ()  # round x to bytes first, and have another limit


def measured(compared: KernelComparison, threads: int | None) -> Section:
    """The variants and, on a CPU, the limits of `threads` threads, measured just before them."""
    limits = None if threads is None else measure(threads)
    variants, todos = written([*compared.variants, *compared.byte_variants])
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
    """A row for each limit and one for each variant, compared with the last variant before it that ran."""
    cost, before_s = compared.cost, None
    limit_s, bound = cost.limit(limits)
    rows, notes = list[Row](), list[str]()
    for variants, in_bytes in ((compared.variants, False), (compared.byte_variants, True)):
        least_s, what = cost.limit(limits, in_bytes)
        if least_s is not None and variants:
            rows.append(_row(_BYTE_LIMIT if in_bytes else "limit", [least_s], compared, least_s, None))
            notes += [f"{_BYTE_LIMIT}: {what}"] if in_bytes else []
        for variant in variants:
            if variant.name in todos:
                rows.append(Row(f"{variant.name}: {todos[variant.name]}", {}))
                continue
            rows.append(_row(variant.name, seconds[variant.name], compared, least_s, before_s))
            before_s = rows[-1].median("seconds")
            if not in_bytes and limit_s is not None and before_s < limit_s and bound.startswith("f32"):
                notes = [_INTEGERS] if cost.allows_integers else []
    work = f"{cost.num_bytes / 1e6:.2f} MB to move, {cost.flops / 1e6:.1f} MFLOP to compute; limit: {bound}"
    return Section(
        "kernels",
        f"{compared.title}\n{work}",
        (*_COLUMNS, _PART) if compared.num_parts else _COLUMNS,
        rows,
        notes=notes,
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
