"""`bench-engine`: what the engine's steps cost, and what its schedule does to those who wait."""

import json
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from tiny_llm_lab.bench.engine import random_bits
from tiny_llm_lab.bench.host import host_facts
from tiny_llm_lab.commands.cli_errors import log
from tiny_llm_lab.commands.options import (
    add_kernel_arguments,
    add_model_arguments,
    load_from_args,
    model_name,
)
from tiny_llm_lab.commands.tables import stdout_console
from tiny_llm_lab.types import UserError

from .ahead import ahead
from .chunk_position import chunk_position
from .memory import memory
from .mixed import mixed
from .paged import paged
from .peers import peers
from .report import Report, lines_below, table_of
from .scheduling import scheduler
from .setting import Setting
from .slo import slo

HELP = "Measure the steps of the engine, its scheduler, its memory, and its latencies under load."
EXPERIMENTS: Final[dict[str, Callable[[Setting], Report]]] = {
    "mixed": mixed,
    "paged": paged,
    "ahead": ahead,
    "scheduler": scheduler,
    "chunk-position": chunk_position,
    "memory": memory,
    "slo": slo,
    "peers": peers,
}
_NEEDED: Final = ("Engine", "BatchGenerator", "Scheduler", "PrefixCache", "StepLayout", "StepTimeModel")
_NUMBERS: Final = {
    "--rounds": (9, "turns of every step"),
    "--repeats": (1, "turns of every run under load"),
    "--context": (512, "stored tokens of a decode"),
    "--streams": (8, "decodes"),
    "--chunk": (128, "tokens of a chunk"),
    "--memory-tokens": (16_384, "tokens of the prompt whose memory is measured, or as many as fit"),
    "--seed": (0, "of tokens and arrivals"),
}


def add_arguments(parser: ArgumentParser) -> None:
    add_model_arguments(parser, random_bits=4)
    add_kernel_arguments(parser)
    parser.add_argument(
        "--experiment",
        action="append",
        choices=list(EXPERIMENTS),
        help="may be given several times (default: all of them)",
    )
    for flag, (default, what) in _NUMBERS.items():
        parser.add_argument(flag, type=int, default=default, help=f"{what} (default: %(default)s)")
    parser.add_argument(
        "--load-s", type=float, default=5.0, help="seconds of one run under load (default: %(default)s)"
    )
    parser.add_argument(
        "--calibration-out", type=Path, help="write what chunk-position measured for `simulate --calibration`"
    )
    parser.add_argument("--json", action="store_true", help="the last line of stdout is the result")


def run(args: Namespace) -> int:
    names = chosen(args)
    setting = _setting(args)
    facts = host_facts()
    console, reports = stdout_console(), []
    for name in names:
        log(f"{name} ...")
        report = EXPERIMENTS[name](setting)
        reports.append(report)
        if name == "chunk-position" and args.calibration_out:
            _write(args.calibration_out, report.data["calibration"])
        if not args.json:
            _show(console, report)
    if args.json:
        print(json.dumps(_result(args, facts, setting, reports)))
    return 0


def chosen(args: Namespace) -> list[str]:
    """The experiments in their order, each once; raises UserError for numbers that make no sense."""
    for flag in _NUMBERS:
        value, least = getattr(args, flag[2:].replace("-", "_")), 0 if flag == "--seed" else 1
        if value < least:
            raise UserError(f"{flag} must be {least} or more, not {value}")
    if args.load_s <= 0:
        raise UserError(f"--load-s must be above 0, not {args.load_s:g}")
    names = [name for name in EXPERIMENTS if args.experiment is None or name in args.experiment]
    if args.calibration_out and "chunk-position" not in names:
        raise UserError("--calibration-out goes with --experiment chunk-position")
    return names


def _setting(args: Namespace) -> Setting:
    if args.solution == "mlx-lm":
        raise UserError("mlx-lm has no Engine: choose --solution ref or mine; --experiment peers compares it")
    loaded = load_from_args(args, random_bits(model_name(args)))
    llm: Any = loaded.solution
    missing = [name for name in _NEEDED if not hasattr(llm, name)]
    if missing:
        raise UserError(f"solution {args.solution!r} has no {missing[0]}: choose --solution ref")
    return Setting(
        llm,
        loaded.model,
        loaded.checkpoint,
        rounds=args.rounds,
        repeats=args.repeats,
        context=args.context,
        streams=args.streams,
        chunk=args.chunk,
        load_s=args.load_s,
        memory_tokens=args.memory_tokens,
        seed=args.seed,
    )


def _show(console: Console, report: Report) -> None:
    console.print(f"{report.experiment}: {report.title}", highlight=False, soft_wrap=True)
    console.print(table_of(report, plain=not console.is_terminal))
    for line in lines_below(report):
        console.print(line, highlight=False, soft_wrap=True)
    console.print()


def _write(path: Path, calibration: dict[str, Any]) -> None:
    try:
        path.write_text(json.dumps(calibration) + "\n", encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}: choose another file") from None


def _result(
    args: Namespace, facts: dict[str, Any], setting: Setting, reports: list[Report]
) -> dict[str, Any]:
    model = random_bits(model_name(args))
    names = [flag[2:].replace("-", "_") for flag in _NUMBERS]
    return {
        "benchmark": "engine",
        # A model given as a folder is named, not located: results travel to other machines.
        "settings": {
            "model": Path(model).name if Path(model).is_dir() else model,
            "solution": args.solution,
            "dtype": str(setting.checkpoint.dtype).split(".")[-1],
            "threads": args.threads,
            "activation_bits": args.activation_bits,
            "load_s": args.load_s,
        }
        | {name: getattr(args, name) for name in names},
        "host": facts,
        "reports": [report.to_json() for report in reports],
    }
