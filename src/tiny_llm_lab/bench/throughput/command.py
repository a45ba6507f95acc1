"""`bench`: tokens per second of a solution, beside the limits of the machine and beside other engines."""

import json
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import mlx.core as mx

from tiny_llm_lab.bench.child import CrashError
from tiny_llm_lab.bench.flags import add_numbers, check_numbers, random_bits, shown_model
from tiny_llm_lab.bench.host import host_facts
from tiny_llm_lab.bench.report import document, print_section
from tiny_llm_lab.bench.sample import Schedule, Spec
from tiny_llm_lab.commands.cli_errors import EXIT_FAILED, log
from tiny_llm_lab.commands.options import add_activation_bits, add_model_arguments, model_name
from tiny_llm_lab.commands.tables import stdout_console
from tiny_llm_lab.interleave import interleave
from tiny_llm_lab.models.config import read_config
from tiny_llm_lab.models.registry import find_folder
from tiny_llm_lab.native.isa import physical_cores
from tiny_llm_lab.native.limits import Limits, measure
from tiny_llm_lab.types import UserError

from .rates import MIN_STEPS, needed_output_len
from .result import drift_line, result_of, section_of
from .targets import (
    BASELINES,
    MLX_LM,
    SLOW_OUTPUT_LEN,
    SLOW_PROMPT_LEN,
    BenchTarget,
    at_once,
    baseline_targets,
    our_targets,
)

HELP = "Measure prefill and decode, beside the limits of the machine and beside other engines."
_NUMBERS: Final = {
    "--prompt-len": (512, "tokens of every prompt"),
    "--output-len": (32, "tokens of every answer"),
    "--batch": (1, "requests at a time"),
    "--repeats": (3, "fresh processes per engine"),
    "--threads": (physical_cores(), "for every engine"),
}
# What a peer needs: its first token, a step that is left out, and enough to measure.
_MIN_PEER_OUTPUT: Final = MIN_STEPS + 3


def add_arguments(parser: ArgumentParser) -> None:
    add_model_arguments(parser, random_bits=4)
    add_numbers(parser, _NUMBERS)
    parser.add_argument("--prefill-step", type=int, help="most tokens of a chunk (default: the whole prompt)")
    add_activation_bits(parser)
    parser.add_argument("--baselines", default="", help=f"comma-separated, of {', '.join(BASELINES)}")
    for flag, most in (("prompt", SLOW_PROMPT_LEN), ("output", SLOW_OUTPUT_LEN)):
        about = f"of the baselines (default: as ours, but at most {most} for mlx-lm on a CPU)"
        parser.add_argument(f"--baseline-{flag}-len", type=int, help=about)
    parser.add_argument("--json", action="store_true", help="the last line of stdout is the result")


def run(args: Namespace) -> int:
    spec, names = checked(args)
    targets, skipped = _line_up(args, spec, names)
    facts = host_facts()
    for target in list(targets):
        _or_skip(targets, skipped, target, target.prepare_files)
    limits = _limits(args.threads)
    try:
        for repeat, target in interleave(targets, args.repeats):
            _or_skip(targets, skipped, target, partial(target.run, repeat))
            if target in targets:
                rates = "prefill {prefill_tok_s:.1f}, decode {decode_tok_s:.1f} tok/s"
                log(f"repeat {repeat}, {target.title}: {rates.format(**target.samples[-1])}")
    except CrashError as crash:
        log(f"{crash}\nerror: the measuring process of solution {args.solution} crashed, see above")
        return EXIT_FAILED
    limits += _limits(args.threads) if limits else []
    if limits and (warning := drift_line(limits)):
        log(warning)
    settings = _settings(args, spec)
    # Settings stand at the top level as well, where scripts have always found them.
    result = settings | result_of(targets, limits, args.batch, skipped)
    if args.json:
        print(json.dumps(document("throughput", settings, facts, **result)))
    else:
        print_section(stdout_console(), section_of(result, limits))
    return 0


def checked(args: Namespace) -> tuple[Spec, list[str]]:
    """What to measure of ours, and the names of the baselines; raises UserError for what makes no sense."""
    check_numbers(args, dict.fromkeys((*_NUMBERS, "--prefill-step", "--baseline-prompt-len"), 1))
    check_numbers(args, {"--baseline-output-len": _MIN_PEER_OUTPUT})
    names = list(dict.fromkeys(filter(None, (name.strip() for name in args.baselines.split(",")))))
    for name in names:
        if name not in BASELINES:
            raise UserError(f"unknown baseline {name!r}: choose of {', '.join(BASELINES)}")
    step = args.prefill_step or args.prompt_len
    needed = needed_output_len(args.batch, args.prompt_len, step)
    if args.output_len < needed:
        raise UserError(
            f"--output-len {args.output_len} leaves fewer than {MIN_STEPS} steps in which all "
            f"{args.batch} requests decode: take {needed} or more"
        )
    spec = Spec(
        model=random_bits(model_name(args)),
        solution=args.solution,
        device=args.device,
        dtype=args.dtype,
        schedule=Schedule(step),
        batch_size=args.batch,
        requests=at_once(args.batch, args.prompt_len, args.output_len),
        activation_bits=args.activation_bits,
    )
    return spec, names


def _line_up(args: Namespace, spec: Spec, names: list[str]) -> tuple[list[BenchTarget], dict[str, str]]:
    """Our target first, then the baselines; and why some baselines are left out."""
    config, _ = read_config(find_folder(spec.model) / "config.json")
    targets, skipped = our_targets(spec, args.threads), {}
    for name in names:
        lengths = _peer_lengths(args, name)
        try:
            targets += baseline_targets(name, spec, config, args.threads, *lengths)
        except UserError as error:
            skipped[name] = str(error)
            log(f"{name} is left out: {error}")
            continue
        if lengths != (args.prompt_len, args.output_len):
            log(f"{name}: prompts of {lengths[0]} and answers of {lengths[1]} tokens, not as ours")
    return targets, skipped


def _peer_lengths(args: Namespace, name: str) -> tuple[int, int]:
    on_cpu = args.device == "cpu" or (args.device is None and mx.default_device().type == mx.DeviceType.cpu)
    prompt_len, output_len = args.prompt_len, max(args.output_len, _MIN_PEER_OUTPUT)
    if name == MLX_LM and on_cpu:
        prompt_len, output_len = min(prompt_len, SLOW_PROMPT_LEN), min(output_len, SLOW_OUTPUT_LEN)
    return args.baseline_prompt_len or prompt_len, args.baseline_output_len or output_len


def _or_skip(
    targets: list[BenchTarget], skipped: dict[str, str], target: BenchTarget, action: Callable[[], None]
) -> None:
    """Do `action`; a peer that cannot do it leaves the list, with the reason. Our own failure is raised."""
    try:
        action()
    except (UserError, CrashError) as error:
        if target is targets[0]:
            raise
        targets.remove(target)
        skipped[target.title] = str(error).splitlines()[-1]
        log(f"{target.title} is left out: {skipped[target.title]}")


def _limits(threads: int) -> list[Limits]:
    try:
        return [measure(threads)]
    except UserError as error:
        log(f"the limits of this machine are not measured: {error}")
        return []


def _settings(args: Namespace, spec: Spec) -> dict[str, Any]:
    names = ("solution", "batch", "threads", "repeats", "activation_bits")
    return {"model": shown_model(spec.model), "prefill_step": spec.schedule.prefill_step} | {
        name: getattr(args, name) for name in names
    }
