"""`bench-kernels`: the variants of each operator, from the definition to the reference, under the limit."""

from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from itertools import product
from typing import Final

import mlx.core as mx

from benchmarks.kernels.comparison import KernelComparison, measured
from benchmarks.kernels.variants import DRAWS, attention, delta_net, drawing, products
from tiny_llm_lab.measure.bench.host import host_facts
from tiny_llm_lab.measure.bench.report import Report
from tiny_llm_lab.runtime import native
from tiny_llm_lab.runtime.console.field_flags import at_least_one
from tiny_llm_lab.runtime.console.talk import log
from tiny_llm_lab.runtime.native.settings import usable_cores
from tiny_llm_lab.types import UserError
from tiny_llm_lab.types.packages import PACKAGES

HELP = "Measure every version of the kernels, from the first rung to yours, against the machine's limits."
OPS: Final = ("qmm", "attention", "delta", "draw", "all")
# New tokens and those stored before them: decoding, and a chunk of a prompt.
_ATTENTIONS: Final = ((1, 512), (1, 2048), (128, 512))
_LONG_ATTENTIONS: Final = ((1, 512), (1, 4096), (1, 16_384), (128, 512))
# Heads, kv heads and dimension of a Qwen3.5-0.8B, and as much arithmetic with heads of 128.
_SHAPES: Final = ((8, 2, 256), (16, 4, 128))
# Tokens and requests: decodes, and chunks of a prompt.
_DELTA_NETS: Final = ((1, 1), (1, 8), (128, 1), (512, 1))


def add_arguments(parser: ArgumentParser) -> None:
    about = "with mine, also measure your kernels"
    parser.add_argument("--solution", choices=["mine", "ref"], default="ref", help=about)
    about = "kernel to measure: quantized matmul, attention, gated delta net, draw or all (default: all)"
    parser.add_argument("--op", choices=OPS, default="all", help=about)
    parser.add_argument("--rows", default="1,8,128", help="rows of x, and of logits (default: 1,8,128)")
    about = "threads of the kernels on a CPU (default: one per core)"
    parser.add_argument("--threads", type=at_least_one, default=usable_cores(), metavar="N", help=about)
    parser.add_argument("--json", action="store_true", help="print one line of JSON instead of tables")


def run(args: Namespace) -> int:
    rows, report, facts = row_counts(args.rows), Report(args.json), host_facts()
    on_cpu = mx.default_device() == mx.cpu
    if on_cpu:
        native.binding().set_num_threads(args.threads)
    for compared in _comparisons(args, rows):
        log(f"{compared.title} ...")
        report.add(measured(compared, args.threads if on_cpu else None))
    settings = {"solution": args.solution, "op": args.op, "rows": rows, "threads": args.threads}
    report.end("kernels", settings, facts)
    return 0


def _comparisons(args: Namespace, rows: list[int]) -> Iterator[KernelComparison]:
    packages = [PACKAGES["ref"], *([PACKAGES["mine"]] if args.solution == "mine" else [])]
    if args.op in ("qmm", "all"):
        yield from (products(num, packages) for num in rows)
    if args.op in ("attention", "all"):
        yield from (attention(*sizes, packages) for sizes in _ATTENTIONS)
        yield from (
            attention(*sizes, packages, *shape) for sizes, shape in product(_LONG_ATTENTIONS, _SHAPES)
        )
    if args.op in ("delta", "all"):
        yield from (delta_net(tokens, requests, packages) for tokens, requests in _DELTA_NETS)
    if args.op in ("draw", "all"):
        yield from (drawing(num, sampling, packages) for sampling in DRAWS for num in rows)


def row_counts(text: str) -> list[int]:
    """The numbers of --rows; raises UserError for anything else."""
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < 1:
        raise UserError(f"--rows must be numbers of 1 or more, separated by commas, not {text!r}")
    return numbers
