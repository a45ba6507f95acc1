"""`bench-engine`: what the engine's steps cost, and what its schedule does to latencies."""

import json
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from tiny_llm_lab.bench.flags import add_numbers, check_numbers, random_bits, shown_model, values_of
from tiny_llm_lab.bench.host import host_facts
from tiny_llm_lab.bench.report import Section, document, print_section
from tiny_llm_lab.commands.cli_errors import log
from tiny_llm_lab.commands.options import add_kernel_arguments, add_model_arguments, model_name
from tiny_llm_lab.commands.tables import stdout_console
from tiny_llm_lab.types import UserError

from .ahead import ahead
from .chunk_position import chunk_position
from .config import BenchConfig
from .memory import memory
from .mixed import mixed
from .paged import paged
from .peers import peers
from .scheduling import scheduler
from .slo import slo

HELP = "Measure the steps of the engine, its scheduler, its memory, and its latencies under load."
EXPERIMENTS: Final[dict[str, Callable[[BenchConfig], Section]]] = {
    "mixed": mixed,
    "paged": paged,
    "ahead": ahead,
    "scheduler": scheduler,
    "chunk-position": chunk_position,
    "memory": memory,
    "slo": slo,
    "peers": peers,
}
_NUMBERS: Final = {
    "--rounds": (9, "rounds of interleaved steps"),
    "--repeats": (1, "rounds of interleaved runs under load"),
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
    add_numbers(parser, _NUMBERS)
    parser.add_argument(
        "--load-s", type=float, default=5.0, help="seconds of one run under load (default: %(default)s)"
    )
    parser.add_argument(
        "--calibration-out", type=Path, help="write what chunk-position measured for `simulate --calibration`"
    )
    parser.add_argument("--json", action="store_true", help="the last line of stdout is the result")


def run(args: Namespace) -> int:
    names = chosen(args)
    config = BenchConfig.from_args(args)
    facts = host_facts()
    console, sections = stdout_console(), []
    for name in names:
        log(f"{name} ...")
        sections.append(EXPERIMENTS[name](config))
        if name == "chunk-position" and args.calibration_out:
            _write(args.calibration_out, sections[-1].data["calibration"])
        if not args.json:
            print_section(console, sections[-1])
            console.print()
    if args.json:
        print(json.dumps(document("engine", _settings(args, config), facts, sections)))
    return 0


def chosen(args: Namespace) -> list[str]:
    """The experiments in their order, each once; raises UserError for numbers that make no sense."""
    check_numbers(args, dict.fromkeys(_NUMBERS, 1) | {"--seed": 0})
    if args.load_s <= 0:
        raise UserError(f"--load-s must be above 0, not {args.load_s:g}")
    names = [name for name in EXPERIMENTS if args.experiment is None or name in args.experiment]
    if args.calibration_out and "chunk-position" not in names:
        raise UserError("--calibration-out goes with --experiment chunk-position")
    return names


def _write(path: Path, calibration: Mapping[str, Any]) -> None:
    try:
        path.write_text(json.dumps(calibration) + "\n", encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}: choose another file") from None


def _settings(args: Namespace, config: BenchConfig) -> dict[str, Any]:
    return {
        "model": shown_model(random_bits(model_name(args))),
        "solution": args.solution,
        "dtype": str(config.checkpoint.dtype).split(".")[-1],
        "threads": args.threads,
        "activation_bits": args.activation_bits,
        "load_s": args.load_s,
        **values_of(args, _NUMBERS),
    }
