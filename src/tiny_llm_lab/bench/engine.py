"""`bench`: tokens per second of a solution, beside the limits of the machine and beside other engines."""

import json
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import mlx.core as mx

from tiny_llm_lab.commands.cli_errors import EXIT_FAILED, log
from tiny_llm_lab.commands.options import add_activation_bits, add_model_arguments, model_name
from tiny_llm_lab.commands.tables import stdout_console
from tiny_llm_lab.models.config import read_config
from tiny_llm_lab.models.registry import RANDOM_PREFIX, find_folder
from tiny_llm_lab.native.isa import physical_cores
from tiny_llm_lab.native.limits import Limits, measure
from tiny_llm_lab.types import UserError

from .child import CrashError
from .contenders import (
    BASELINES,
    MLX_LM,
    SLOW_OUTPUT_LEN,
    SLOW_PROMPT_LEN,
    Contender,
    our_contenders,
    peer_contenders,
    rounds,
)
from .engine_report import drift_line, limits_line, result_of, table_of
from .engine_sample import EngineSpec
from .host import host_facts
from .rates import MIN_STEPS, needed_output_len

HELP = "Measure prefill and decode, beside the limits of the machine and beside other engines."
_NUMBERS: Final = {
    "--prompt-len": (512, "tokens of every prompt"),
    "--output-len": (32, "tokens of every answer"),
    "--batch": (1, "requests at a time"),
    "--repeats": (3, "fresh processes per engine"),
}
# What a peer needs: its first token, a step that is left out, and enough to measure.
_MIN_PEER_OUTPUT: Final = MIN_STEPS + 3


def add_arguments(parser: ArgumentParser) -> None:
    add_model_arguments(parser, random_bits=4)
    for flag, (default, what) in _NUMBERS.items():
        parser.add_argument(flag, type=int, default=default, help=f"{what} (default: %(default)s)")
    parser.add_argument("--prefill-step", type=int, help="most tokens of a chunk (default: the whole prompt)")
    parser.add_argument(
        "--threads", type=int, default=physical_cores(), help="for every engine (default: %(default)s)"
    )
    add_activation_bits(parser)
    parser.add_argument("--baselines", default="", help=f"comma-separated, of {', '.join(BASELINES)}")
    parser.add_argument(
        "--baseline-prompt-len",
        type=int,
        help=f"of the baselines (default: as ours, but at most {SLOW_PROMPT_LEN} for mlx-lm on a CPU)",
    )
    parser.add_argument(
        "--baseline-output-len",
        type=int,
        help=f"of the baselines (default: as ours, but at most {SLOW_OUTPUT_LEN} for mlx-lm on a CPU)",
    )
    parser.add_argument("--json", action="store_true", help="the last line of stdout is the result")


def run(args: Namespace) -> int:
    spec, names = checked(args)
    fighters, skipped = _line_up(args, spec, names)
    facts = host_facts()
    for fighter in list(fighters):
        _or_out(fighters, skipped, fighter, fighter.prepare_files)
    limits = _limits(args.threads)
    try:
        for repeat, fighter in rounds(fighters, args.repeats):
            _or_out(fighters, skipped, fighter, partial(fighter.run, repeat))
            if fighter in fighters:
                _tell(fighter, repeat)
    except CrashError as crash:
        log(f"{crash}\nerror: the measuring process of solution {args.solution} crashed, see above")
        return EXIT_FAILED
    limits += _limits(args.threads) if limits else []
    if limits and (warning := drift_line(limits)):
        log(warning)
    settings = _settings(args, spec) | {"host": facts}
    result = result_of(fighters, limits, settings, skipped)
    if args.json:
        print(json.dumps(result))
        return 0
    console = stdout_console()
    console.print(table_of(result, plain=not console.is_terminal))
    if limits:
        console.print(limits_line(limits), highlight=False, soft_wrap=True)
    return 0


def checked(args: Namespace) -> tuple[EngineSpec, list[str]]:
    """What to measure of ours, and the names of the baselines; raises UserError for what makes no sense."""
    for flag in ("prompt_len", "output_len", "batch", "repeats", "threads", "prefill_step"):
        value = getattr(args, flag)
        if value is not None and value < 1:
            raise UserError(f"--{flag.replace('_', '-')} must be 1 or more, not {value}")
    names = list(dict.fromkeys(filter(None, (name.strip() for name in args.baselines.split(",")))))
    for name in names:
        if name not in BASELINES:
            raise UserError(f"unknown baseline {name!r}: choose of {', '.join(BASELINES)}")
    for flag, least in (("baseline_prompt_len", 1), ("baseline_output_len", _MIN_PEER_OUTPUT)):
        value = getattr(args, flag)
        if value is not None and value < least:
            raise UserError(f"--{flag.replace('_', '-')} must be {least} or more, not {value}")
    step = args.prefill_step or args.prompt_len
    needed = needed_output_len(args.batch, args.prompt_len, step)
    if args.output_len < needed:
        raise UserError(
            f"--output-len {args.output_len} leaves fewer than {MIN_STEPS} steps in which all "
            f"{args.batch} requests decode: take {needed} or more"
        )
    spec = EngineSpec(
        model=random_bits(model_name(args)),
        solution=args.solution,
        device=args.device,
        dtype=args.dtype,
        prompt_len=args.prompt_len,
        output_len=args.output_len,
        batch=args.batch,
        prefill_step=step,
        activation_bits=args.activation_bits,
    )
    return spec, names


def random_bits(model: str) -> str:
    """A random model that does not say its bits gets 4: what is compared here is 4-bit engines."""
    is_open = (
        model.startswith(RANDOM_PREFIX) and "bits=" not in model and not model.split(",")[0].endswith("-4bit")
    )
    return f"{model},bits=4" if is_open else model


def _line_up(args: Namespace, spec: EngineSpec, names: list[str]) -> tuple[list[Contender], dict[str, str]]:
    """Our contender first, then the baselines; and why some baselines are left out."""
    config, _ = read_config(find_folder(spec.model) / "config.json")
    fighters, skipped = our_contenders(spec, args.threads), {}
    for name in names:
        lengths = _peer_lengths(args, name)
        try:
            fighters += peer_contenders(name, spec, config, args.threads, *lengths)
        except UserError as error:
            skipped[name] = str(error)
            log(f"{name} is left out: {error}")
            continue
        if lengths != (spec.prompt_len, spec.output_len):
            log(f"{name}: prompts of {lengths[0]} and answers of {lengths[1]} tokens, not as ours")
    return fighters, skipped


def _peer_lengths(args: Namespace, name: str) -> tuple[int, int]:
    on_cpu = args.device == "cpu" or (args.device is None and mx.default_device().type == mx.DeviceType.cpu)
    prompt_len, output_len = args.prompt_len, max(args.output_len, _MIN_PEER_OUTPUT)
    if name == MLX_LM and on_cpu:
        prompt_len, output_len = min(prompt_len, SLOW_PROMPT_LEN), min(output_len, SLOW_OUTPUT_LEN)
    return args.baseline_prompt_len or prompt_len, args.baseline_output_len or output_len


def _or_out(
    fighters: list[Contender], skipped: dict[str, str], fighter: Contender, action: Callable[[], None]
) -> None:
    """Do `action`; a peer that cannot do it leaves the list, with the reason. Our own failure is raised."""
    try:
        action()
    except (UserError, CrashError) as error:
        if fighter is fighters[0]:
            raise
        fighters.remove(fighter)
        skipped[fighter.title] = str(error).splitlines()[-1]
        log(f"{fighter.title} is left out: {skipped[fighter.title]}")


def _limits(threads: int) -> list[Limits]:
    try:
        return [measure(threads)]
    except UserError as error:
        log(f"the limits of this machine are not measured: {error}")
        return []


def _tell(fighter: Contender, repeat: int) -> None:
    sample = fighter.samples[-1]
    rates = f"prefill {sample['prefill_tok_s']:.1f}, decode {sample['decode_tok_s']:.1f} tok/s"
    log(f"repeat {repeat}, {fighter.title}: {rates}")


def _settings(args: Namespace, spec: EngineSpec) -> dict[str, Any]:
    # A model given as a folder is named, not located: results travel to other machines.
    model = Path(spec.model).name if Path(spec.model).is_dir() else spec.model
    names = ("solution", "batch", "threads", "repeats", "activation_bits")
    return {"model": model, "prefill_step": spec.prefill_step} | {name: getattr(args, name) for name in names}
