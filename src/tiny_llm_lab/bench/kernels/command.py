"""`bench-kernels`: the variants of each operator, from the definition to the reference, under the limit."""

import json
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from typing import Final

import mlx.core as mx

from tiny_llm_lab import native
from tiny_llm_lab.bench.flags import check_numbers
from tiny_llm_lab.bench.harness import time_variants
from tiny_llm_lab.bench.host import host_facts
from tiny_llm_lab.bench.report import Section, document, print_section
from tiny_llm_lab.commands.cli_errors import log
from tiny_llm_lab.commands.tables import stdout_console
from tiny_llm_lab.native.isa import physical_cores
from tiny_llm_lab.native.limits import measure
from tiny_llm_lab.solution import PACKAGES
from tiny_llm_lab.types import UserError

from .comparison import KernelComparison, section_of, written
from .variants import attention, products

HELP = "Measure the variants of the kernels: limit, oracle, MLX, the steps, the reference, yours."
OPS: Final = ("qmm", "attention", "all")
_ROUNDS: Final = 9
_SLOW_S: Final = 0.3  # a variant this slow is repeated less often: its spread is small anyway
# New tokens and those stored before them: decoding, and a chunk of a prompt.
_ATTENTIONS: Final = ((1, 512), (1, 2048), (128, 512))


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--solution", choices=["mine", "ref"], default="ref", help="mine adds your kernels")
    parser.add_argument("--op", choices=OPS, default="all", help="quantized matmul, attention, or both")
    parser.add_argument("--rows", default="1,8,128", help="rows of x in the products (default: 1,8,128)")
    parser.add_argument("--threads", type=int, help="default: one for each core")
    parser.add_argument("--json", action="store_true", help="print one line of JSON and no tables")


def run(args: Namespace) -> int:
    rows = row_counts(args.rows)
    check_numbers(args, {"--threads": 1})
    facts, on_cpu, threads = host_facts(), mx.default_device() == mx.cpu, args.threads or physical_cores()
    if on_cpu:
        native.binding().set_num_threads(threads)
    console, sections = stdout_console(), []
    for compared in _comparisons(args, rows):
        log(f"{compared.title} ...")
        sections.append(_measured(compared, threads if on_cpu else None))
        if not args.json:
            print_section(console, sections[-1])
            console.print()
    if args.json:
        settings = {"solution": args.solution, "op": args.op, "rows": rows, "threads": threads}
        print(json.dumps(document("kernels", settings, facts, sections)))
    return 0


def _comparisons(args: Namespace, rows: list[int]) -> Iterator[KernelComparison]:
    packages = [PACKAGES["ref"], *([PACKAGES["mine"]] if args.solution == "mine" else [])]
    if args.op in ("qmm", "all"):
        yield from (products(num, packages) for num in rows)
    if args.op in ("attention", "all"):
        yield from (attention(new, stored, packages) for new, stored in _ATTENTIONS)


def _measured(compared: KernelComparison, threads: int | None) -> Section:
    """The variants and, on a CPU, the limits of `threads` threads, measured just before them."""
    limits = None if threads is None else measure(threads)
    variants, todos = written(compared.variants)
    return section_of(compared, limits, time_variants(variants, _ROUNDS, slow_s=_SLOW_S), todos)


def row_counts(text: str) -> list[int]:
    """The numbers of --rows; raises UserError for anything else."""
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < 1:
        raise UserError(f"--rows takes numbers of 1 or more, separated by commas, not {text!r}")
    return numbers
