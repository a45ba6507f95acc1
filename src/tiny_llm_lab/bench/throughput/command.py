"""`bench`: tokens per second of a solution, beside the limits of the machine and beside other engines."""

from argparse import ArgumentParser, Namespace
from typing import Final

import mlx.core as mx

from tiny_llm_lab.bench.child import CrashError
from tiny_llm_lab.bench.flags import add_numbers, random_bits, shown_model
from tiny_llm_lab.bench.host import host_facts
from tiny_llm_lab.bench.report import Report
from tiny_llm_lab.bench.spec import Schedule, Spec, at_once
from tiny_llm_lab.commands.cli_errors import EXIT_FAILED, log
from tiny_llm_lab.commands.options import (
    add_activation_bits,
    add_async_scheduling,
    add_model_arguments,
    async_scheduling,
    model_name,
)
from tiny_llm_lab.interleave import interleave
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
    baseline_targets,
    our_targets,
)

HELP = "Measure prefill and decode, beside the limits of the machine and beside other engines."
# What a peer needs: its first token, a step that is left out, and enough to measure.
_MIN_PEER_OUTPUT: Final = MIN_STEPS + 3
_AS_OURS: Final = "of the baselines (default: as ours, but at most {} for mlx-lm on a CPU)"
_NUMBERS: Final = {
    "--prompt-len": (512, 1, "tokens of every prompt"),
    "--output-len": (32, 1, "tokens of every answer"),
    "--batch": (1, 1, "requests at a time"),
    "--repeats": (3, 1, "fresh processes per engine"),
    "--threads": (physical_cores(), 1, "for every engine"),
    "--prefill-step": (None, 1, "most tokens of a chunk (default: the whole prompt)"),
    "--baseline-prompt-len": (None, 1, _AS_OURS.format(SLOW_PROMPT_LEN)),
    "--baseline-output-len": (None, _MIN_PEER_OUTPUT, _AS_OURS.format(SLOW_OUTPUT_LEN)),
}


def add_arguments(parser: ArgumentParser) -> None:
    add_model_arguments(parser, random_bits=4)
    add_numbers(parser, _NUMBERS)
    add_activation_bits(parser)
    add_async_scheduling(parser)
    parser.add_argument("--baselines", default="", help=f"comma-separated, of {', '.join(BASELINES)}")
    parser.add_argument("--json", action="store_true", help="the last line of stdout is the result")


def run(args: Namespace) -> int:
    spec, names = checked(args)
    find_folder(spec.model)  # a typo costs no process
    targets, skipped = _line_up(args, spec, names)
    facts, limits, report = host_facts(), _limits(args.threads), Report(args.json)
    try:
        for repeat, target in interleave(targets, args.repeats):
            _measure(targets, skipped, target, repeat)
    except CrashError as crash:
        log(f"{crash}\nerror: the measuring process of solution {args.solution} crashed, see above")
        return EXIT_FAILED
    limits += _limits(args.threads) if limits else []
    if limits and (warning := drift_line(limits)):
        log(warning)
    settings = {"model": shown_model(spec.model), "prefill_step": spec.schedule.prefill_step}
    settings |= {name: getattr(args, name) for name in ("solution", "batch", "threads", "repeats")}
    settings |= {name: getattr(spec, name) for name in ("activation_bits", "async_scheduling")}
    # Settings stand at the top level as well, where scripts have always found them.
    result = settings | result_of(targets, limits, args.batch, skipped)
    if args.json:
        report.end("throughput", settings, facts, **result)
    else:
        report.add(section_of(result, limits))
    return 0


def checked(args: Namespace) -> tuple[Spec, list[str]]:
    """What to measure of ours, and the names of the baselines; raises UserError for what makes no sense."""
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
        async_scheduling=async_scheduling(args),
        threads=args.threads,
    )
    return spec, names


def _line_up(args: Namespace, spec: Spec, names: list[str]) -> tuple[list[BenchTarget], dict[str, str]]:
    """Our target first, then the baselines; and why some baselines are left out."""
    targets, skipped = our_targets(spec), dict[str, str]()
    for name in names:
        lengths = _peer_lengths(args, name)
        try:
            targets += baseline_targets(name, spec, *lengths)
        except UserError as error:
            skipped[name] = str(error)
            log(f"{name} is left out: {error}")
            continue
        if lengths != (args.prompt_len, args.output_len):
            log(f"{name}: prompts of {lengths[0]} and answers of {lengths[1]} tokens, not as ours")
    return targets, skipped


def _peer_lengths(args: Namespace, name: str) -> tuple[int, int]:
    on_cpu = args.device == "cpu" or (args.device is None and mx.default_device() == mx.cpu)
    prompt_len, output_len = args.prompt_len, max(args.output_len, _MIN_PEER_OUTPUT)
    if name == MLX_LM and on_cpu:
        prompt_len, output_len = min(prompt_len, SLOW_PROMPT_LEN), min(output_len, SLOW_OUTPUT_LEN)
    return args.baseline_prompt_len or prompt_len, args.baseline_output_len or output_len


def _measure(targets: list[BenchTarget], skipped: dict[str, str], target: BenchTarget, repeat: int) -> None:
    """One run; a peer that cannot do it leaves the list, with the reason. Our own failure is raised."""
    try:
        target.run(repeat)
    except (UserError, CrashError) as error:
        if target is targets[0]:
            raise
        targets.remove(target)
        skipped[target.title] = str(error).splitlines()[-1]
        log(f"{target.title} is left out: {skipped[target.title]}")
    else:
        rates = "prefill {prefill_tok_s:.1f}, decode {decode_tok_s:.1f} tok/s"
        log(f"repeat {repeat}, {target.title}: {rates.format(**target.samples[-1])}")


def _limits(threads: int) -> list[Limits]:
    try:
        return [measure(threads)]
    except UserError as error:
        log(f"the limits of this machine are not measured: {error}")
        return []
