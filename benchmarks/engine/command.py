"""`bench-engine`: the cost of the engine's steps, and how its schedule affects latencies."""

import json
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks.engine.chunks import chunk_position, memory
from benchmarks.engine.config import BenchConfig
from benchmarks.engine.drafts import drafts
from benchmarks.engine.features import features
from benchmarks.engine.phases import phases
from benchmarks.engine.steps import ahead, mixed, paged, scheduler
from benchmarks.engine.under_load import peers
from tiny_llm_lab.measure.bench.flags import shown_fields, shown_model
from tiny_llm_lab.measure.bench.host import host_facts
from tiny_llm_lab.measure.bench.report import Report, Section
from tiny_llm_lab.runtime.console.field_flags import add_field_flags
from tiny_llm_lab.runtime.console.talk import log, writing
from tiny_llm_lab.serving.options.model_options import add_kernel_arguments, add_model_arguments
from tiny_llm_lab.serving.options.sampling_options import add_draw_arguments
from tiny_llm_lab.types import UserError

HELP = "Measure the engine's steps, scheduler and memory, and its latencies under load."
EXPERIMENTS: Final[dict[str, Callable[[BenchConfig], Section]]] = {
    "phases": phases,
    "mixed": mixed,
    "paged": paged,
    "ahead": ahead,
    "scheduler": scheduler,
    "chunk-position": chunk_position,
    "memory": memory,
    "drafts": drafts,
    "peers": peers,
    "features": features,
    **{f"features-drafts-{number}": partial(features, num_drafts=number) for number in (4, 8)},
}
# What a feature costs is known at a published vocabulary only: their model, if you name none.
_FEATURES, _PUBLISHED = tuple(name for name in EXPERIMENTS if name.startswith("features")), "qwen3-0.6b"


def add_arguments(parser: ArgumentParser) -> None:
    add_model_arguments(parser, random_bits=4)
    add_kernel_arguments(parser)
    add_draw_arguments(parser)
    parser.set_defaults(model=None)
    about = f"may be repeated (default: all but features, which take minutes, on random:{_PUBLISHED})"
    parser.add_argument("--experiment", action="append", choices=list(EXPERIMENTS), help=about)
    add_field_flags(parser, BenchConfig)
    about = "write chunk-position's step times for `simulate --calibration`"
    parser.add_argument("--calibration-out", type=Path, help=about)
    about = "draw chunk-position's step times over their tokens into this PNG file"
    parser.add_argument("--plot", type=Path, metavar="FILE", help=about)
    parser.add_argument("--json", action="store_true", help="print the result as the last line, in JSON")


def run(args: Namespace) -> int:
    names = [name for name in EXPERIMENTS if name in (args.experiment or EXPERIMENTS.keys() - {*_FEATURES})]
    args.model = args.model or (f"random:{_PUBLISHED}" if {*_FEATURES} & {*names} else "default")
    for flag, file in (("--calibration-out", args.calibration_out), ("--plot", args.plot)):
        if file and "chunk-position" not in names:
            raise UserError(f"{flag} needs --experiment chunk-position")
    config = BenchConfig.from_args(args)
    facts, report = host_facts(), Report(args.json)
    for name in names:
        log(f"{name} ...")
        section = EXPERIMENTS[name](config)
        report.add(section)
        if name == "chunk-position" and args.calibration_out:
            text = json.dumps(section.data["calibration"]) + "\n"
            with writing(args.calibration_out, "choose another file"):
                args.calibration_out.write_text(text, encoding="utf-8")
        if name == "chunk-position" and args.plot:
            _plot(section, args.plot)
    settings = {
        "model": shown_model(config.spec.model),
        "dtype": str(config.checkpoint.dtype).split(".")[-1],
        **{name: getattr(args, name) for name in ("solution", "threads")},
        "activation_bits": config.spec.activation_bits,
        "sampling": config.sampling,
        **shown_fields(config),
    }
    report.end("engine", settings, facts)
    return 0


def _plot(section: Section, path: Path) -> None:
    # Imported here: drawing takes a second to import.
    from benchmarks.engine.scatter import save_scatter

    data = section.data
    steps = data["tokens_of_steps"], data["seconds_of_steps"]
    save_scatter(*steps, data["tokens_fit"], section.notes[-1], path)
    log(f"wrote {path}")
