"""`bench-kernels`: the versions of each operator, from the definition to the reference, under the limit."""

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial

import mlx.core as mx

from tiny_llm_lab import native
from tiny_llm_lab.bench.ladder import Cost, Ladder, Rung, shown, timed
from tiny_llm_lab.bench.rungs import attention, products
from tiny_llm_lab.native.isa import physical_cores
from tiny_llm_lab.native.limits import measure
from tiny_llm_lab.solution import PACKAGES
from tiny_llm_lab.types import UserError

HELP = "Measure the ladder of the kernels: limit, oracle, MLX, the steps, the reference, yours."

OPS = ("qmm", "attention", "all")
_ROUNDS = 9
# New tokens and those stored before them: decoding, and a chunk of a prompt.
_ATTENTIONS = ((1, 512), (1, 2048), (128, 512))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--solution", choices=["mine", "ref"], default="ref", help="mine adds your kernels")
    parser.add_argument("--op", choices=OPS, default="all", help="quantized matmul, attention, or both")
    parser.add_argument("--rows", default="1,8,128", help="rows of x in the products (default: 1,8,128)")
    parser.add_argument("--threads", type=int, help="default: one for each core")
    parser.add_argument("--json", action="store_true", help="print one line of JSON and no tables")


def run(args: argparse.Namespace) -> int:
    rows = _numbers(args.rows)
    if args.threads is not None and args.threads < 1:
        raise UserError(f"--threads must be 1 or more, not {args.threads}")
    if mx.default_device() == mx.cpu:
        native.set_num_threads(args.threads or physical_cores())
    ladders = measured(args.op, rows, args.solution, say=lambda text: print(text, file=sys.stderr))
    if args.json:
        print(json.dumps([asdict(ladder) for ladder in ladders]))
    else:
        print("\n".join(shown(ladder) for ladder in ladders))
    return 0


def measured(op: str, rows: Sequence[int], solution: str, say: Callable[[str], None]) -> list[Ladder]:
    """The ladders of an operator, each with its own limits, measured just before it."""
    packages = [PACKAGES["ref"], *([PACKAGES["mine"]] if solution == "mine" else [])]
    makers = [partial(products, num, packages) for num in rows] if op in ("qmm", "all") else []
    if op in ("attention", "all"):
        makers += [partial(attention, new, stored, packages) for new, stored in _ATTENTIONS]
    ladders = []
    for make in makers:
        title, cost, rungs = make()
        say(f"{title} ...")
        ladders.append(_climb(title, cost, rungs))
    return ladders


def _climb(title: str, cost: Cost, rungs: Sequence[Rung]) -> Ladder:
    on_cpu = mx.default_device() == mx.cpu
    limits = measure(native.binding().num_threads()) if on_cpu else None
    return Ladder.of(title, cost, limits, timed(rungs, _ROUNDS, time.perf_counter))


def _numbers(text: str) -> list[int]:
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < 1:
        raise UserError(f"--rows takes numbers from 1 on with commas between, not {text!r}")
    return numbers
