"""`bench-chunked-prefill`: what prefill_step does to those who are reading while a long prompt arrives."""

import json
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn

from tiny_llm_lab.commands.cli_errors import EXIT_FAILED, EXIT_INTERRUPTED, log, plural
from tiny_llm_lab.commands.options import add_model_arguments, model_name
from tiny_llm_lab.commands.tables import stdout_console
from tiny_llm_lab.types import UserError

from .child import CrashError, run_child
from .host import host_facts
from .plot import draw, typical
from .recording import Sample, from_json, overlap_complaint, to_json
from .report import closing_sentence, report_steps, report_table
from .sample import Spec
from .workload import Workload

HELP = "Compare latencies across prefill_step: long prompts arrive while short ones are being answered."
_ENOUGH_REPEATS: Final = 4
_NUMBERS: Final = {
    "--repeats": (4, "fresh processes per prefill_step"),
    "--num-long": (3, "long prompts"),
    "--long-tokens": (1024, "tokens of a long prompt"),
    "--long-max-tokens": (16, "tokens of a long prompt's answer"),
    "--num-short": (10, "short prompts; two in five are there from the start"),
    "--short-tokens": (24, "tokens of a short prompt"),
    "--max-tokens": (128, "tokens of a short prompt's answer"),
}


def add_arguments(parser: ArgumentParser) -> None:
    add_model_arguments(parser)
    steps = [32, 128, 512, 999999]
    parser.add_argument("--prefill-steps", type=int, nargs="+", default=steps, help="default: %(default)s")
    for flag, (default, what) in _NUMBERS.items():
        parser.add_argument(flag, type=int, default=default, help=f"{what} (default: %(default)s)")
    parser.add_argument(
        "--batch-size", type=int, help="default: one slot per request, so that no request waits for a slot"
    )
    parser.add_argument("--out", type=Path, default=Path("out/chunked-prefill"), help="default: %(default)s")
    parser.add_argument("--json", action="store_true", help="print the result file instead of the table")


def run(args: Namespace) -> int:
    spec = _checked(args)
    facts = host_facts()
    samples: list[Sample] = []
    exit_code = 0
    try:
        facts |= _measure(args, spec, samples)
    except CrashError as crash:
        log(f"{crash}\nerror: the measuring process of solution {args.solution} crashed, see above")
        return EXIT_FAILED
    except KeyboardInterrupt:
        if {sample.prefill_step for sample in samples} != set(args.prefill_steps):
            raise
        exit_code = EXIT_INTERRUPTED
    result = _result(spec, facts, samples)
    files = _write(args.out, result, spec, samples)
    if args.json:
        print(json.dumps(result))
    else:
        _print(spec, samples)
    log(f"wrote {' and '.join(map(str, files))}")
    if args.repeats < _ENOUGH_REPEATS:
        said = plural(args.repeats, "repeat")
        log(f"{said} cannot tell noise from effect: take {_ENOUGH_REPEATS} or more")
    return exit_code


def measuring_order(steps: Sequence[int], repeats: int) -> list[tuple[int, int]]:
    """(repeat, prefill_step) forwards, then backwards: a machine that drifts favours no step."""
    return [
        (repeat, step)
        for repeat in range(repeats)
        for step in (steps if repeat % 2 == 0 else list(reversed(steps)))
    ]


def _checked(args: Namespace) -> Spec:
    workload = Workload(
        num_long=args.num_long,
        long_tokens=args.long_tokens,
        long_max_tokens=args.long_max_tokens,
        num_short=args.num_short,
        short_tokens=args.short_tokens,
        short_max_tokens=args.max_tokens,
    )
    if args.repeats < 1 or min(args.prefill_steps) < 1:
        raise UserError("--repeats and every one of --prefill-steps must be 1 or more")
    if len(set(args.prefill_steps)) < len(args.prefill_steps):
        raise UserError("--prefill-steps names a step twice: name each once")
    batch_size = len(workload.kinds()) if args.batch_size is None else args.batch_size
    return Spec(
        model=model_name(args),
        solution=args.solution,
        device=args.device,
        dtype=args.dtype,
        prefill_step=workload.long_tokens,
        batch_size=batch_size,
        repeat=0,
        workload=workload,
        arrivals=None,
    )


def _measure(args: Namespace, spec: Spec, samples: list[Sample]) -> dict[str, Any]:
    """Append every sample to `samples` as it is made, so that an interrupt loses none; returns facts."""
    console = Console(stderr=True)
    order = measuring_order(args.prefill_steps, args.repeats)
    columns = ("{task.description}", BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_interactive) as bar:
        task = bar.add_task("calibrating", total=len(order))
        spec, facts = _calibrated(spec)
        for repeat, step in order:
            bar.update(task, description=f"prefill_step {step}, repeat {repeat}")
            sample = from_json(run_child(replace(spec, prefill_step=step, repeat=repeat)))
            if complaint := overlap_complaint(sample):
                raise UserError(f"prefill_step {step}, repeat {repeat}: {complaint}")
            samples.append(sample)
            bar.advance(task)
            if not console.is_interactive:
                log(f"prefill_step {step}, repeat {repeat}: {sample.total_s:.2f} s")
    return facts


def _calibrated(spec: Spec) -> tuple[Spec, dict[str, Any]]:
    """The spec with arrivals that suit this machine, from one small run; and what was learnt."""
    small = replace(spec.workload, num_long=3, num_short=2, long_max_tokens=1, short_max_tokens=2)
    # One at a time: an engine that prefills several prompts together would make all of them look slow.
    value = run_child(replace(spec, workload=small, batch_size=1))
    sample = from_json(value)
    # The fastest of three: whatever else runs on the machine can only add to the time.
    long_s = min(end_s - start_s for start_s, end_s in sample.long_spans().values())
    # Between two early prompts there is a decode step; twice the first one's time covers it.
    first_s = sample.of_kind("early")[0].ttft_s or 0.0
    arrivals = spec.workload.arrivals(2 * first_s * spec.workload.num_early, long_s)
    facts: dict[str, Any] = value["facts"] | {"unchunked_long_prefill_s": long_s}
    return replace(spec, arrivals=tuple(arrivals)), facts


def _result(spec: Spec, facts: dict[str, Any], samples: Sequence[Sample]) -> dict[str, Any]:
    steps = report_steps(samples)
    # A model given as a folder is named, not located: results travel to other machines.
    model = Path(spec.model).name if Path(spec.model).is_dir() else spec.model
    return {
        "benchmark": "chunked-prefill",
        "settings": {"model": model, "solution": spec.solution, "batch_size": spec.batch_size},
        "workload": asdict(spec.workload),
        "host": facts,
        "steps": [asdict(step) for step in steps],
        "summary": closing_sentence(steps, spec.workload.long_tokens),
        "samples": [to_json(sample) for sample in samples],
    }


def _write(out: Path, result: dict[str, Any], spec: Spec, samples: Sequence[Sample]) -> list[Path]:
    files = [out / "chunked_prefill.json", out / "chunked_prefill.png"]
    workload = spec.workload
    long_ones = f"{workload.num_long} prompts of {workload.long_tokens} tokens"
    short_ones = f"{workload.num_short} of {workload.short_tokens}"
    title = (
        f"{result['settings']['model']} · {spec.solution}: {long_ones} arrive among {short_ones} "
        f"({result['host']['cpu']})"
    )
    shown = [
        typical([sample for sample in samples if sample.prefill_step == step])
        for step in sorted({sample.prefill_step for sample in samples})
    ]
    try:
        out.mkdir(parents=True, exist_ok=True)
        files[0].write_text(json.dumps(result) + "\n", encoding="utf-8")
        draw(shown, title, files[1])
    except OSError as error:
        raise UserError(f"cannot write to {out}: {error.strerror}: choose another --out") from None
    return files


def _print(spec: Spec, samples: Sequence[Sample]) -> None:
    console, steps = stdout_console(), report_steps(samples)
    long_tokens = spec.workload.long_tokens
    console.print(report_table(steps, long_tokens, plain=not console.is_terminal))
    console.print(closing_sentence(steps, long_tokens), highlight=False, soft_wrap=True)
