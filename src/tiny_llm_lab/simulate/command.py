"""`simulate`: replay traffic through the scheduler of a solution, under a virtual clock."""

import json
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

from tiny_llm_lab.commands.cli_errors import log
from tiny_llm_lab.commands.tables import stdout_console
from tiny_llm_lab.models.shapes import parse_shape
from tiny_llm_lab.solution import PACKAGES, Scheduling, load_scheduling
from tiny_llm_lab.types import SchedulerConfig, UserError

from .capacity import capacity
from .cluster import ROUTES
from .cost import StepCost, load_calibration, roofline
from .outcome import Outcome, Slo
from .report import batch_lines, outcome_table
from .setting import Budget, Setting, simulate
from .traffic import LENGTHS, parse_lengths

HELP = "Replay traffic through a solution's scheduler under a virtual clock: latencies, goodput and capacity."

# What an A100 80 GB (datasheet: 2,039 GB/s, 312 TFLOP/s dense bf16) is assumed to reach.
_GB_S: Final = 1500.0
_TFLOP_S: Final = 180.0
_NUMBERS: Final[dict[str, tuple[float, str]]] = {
    "--requests": (1000, "how many requests"),
    "--rate": (2.0, "requests per second, all replicas together"),
    "--burstiness": (1.0, "shape of the gamma intervals: 1 = Poisson, less = bursts"),
    "--batch-share": (0.0, "share of the requests, and of --rate, that is batch class"),
    "--seed": (0, "of arrivals, lengths and noise"),
    "--replicas": (1, "engines that share the requests"),
    "--threshold": (0, "most prompt tokens of one request in a step; 0 = off"),
    "--max-budget": (8192, "most tokens of a step with --budget slo"),
    "--max-num-seqs": (64, "most requests that run at a time, per replica"),
    "--max-model-len": (32768, "most tokens of a request; longer prompts are cut"),
    "--kv-tokens": (320_000, "tokens that the KV cache of a replica holds"),
    "--block-size": (16, "tokens of a block of it"),
    "--itl-slo-ms": (50.0, "longest gap between two tokens"),
    "--ttft-slo-ms": (2000.0, "longest time to the first token"),
    "--gb-s": (_GB_S, "bytes that the machine reads, in GB/s"),
    "--tflop-s": (_TFLOP_S, "its arithmetic, in TFLOP/s"),
    "--overhead-ms": (1.0, "fixed time of a step"),
    "--noise": (0.0, "standard deviation of the logarithm of a step's time"),
}


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--solution", default="ref", choices=list(PACKAGES), help="default: %(default)s")
    for flag, (default, what) in _NUMBERS.items():
        kind = type(default)
        parser.add_argument(flag, type=kind, default=default, help=f"{what} (default: %(default)s)")
    parser.add_argument(
        "--safety", type=float, help="factor on predicted times, with --budget slo (default: from the errors)"
    )
    names = ", ".join(LENGTHS)
    parser.add_argument("--lengths", default="sharegpt", help=f"{names} or fixed:PROMPT:OUTPUT (%(default)s)")
    parser.add_argument("--policy", default="fcfs", choices=["fcfs", "fair", "priority"])
    parser.add_argument("--route", default="round-robin", choices=ROUTES, help="who gets the next request")
    parser.add_argument(
        "--budget", default="512", help="tokens of a step, or slo: the latency policy decides"
    )
    parser.add_argument(
        "--sweep", nargs="+", default=[], help="one row for each of these budgets, and for slo"
    )
    parser.add_argument("--shape", default="qwen3-8b", help="the model, for its bytes and operations")
    parser.add_argument("--calibration", type=Path, help="measured step times instead: a JSON file")
    parser.add_argument("--capacity", action="store_true", help="search the highest --rate inside both SLOs")
    parser.add_argument("--step-by-step", action="store_true", help="skip no steps: slower, the same numbers")
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of the table")


def run(args: Namespace) -> int:
    llm = load_scheduling(args.solution)
    setting = _setting(args)
    budgets = [_budget(text) for text in ([*args.sweep, "slo"] if args.sweep else [args.budget])]
    if args.calibration is None:
        log(
            f"step times are assumed, not measured: {args.shape} at {args.gb_s:g} GB/s, "
            f"{args.tflop_s:g} TFLOP/s, {args.overhead_ms:g} ms overhead"
        )
    rows = []
    for budget in budgets:
        started = time.perf_counter()
        each = replace(setting, budget=budget)
        if args.capacity:
            each = replace(each, rate=_capacity(llm, each))
        rows.append((str(budget), each.rate, simulate(llm, each)))
        log(f"budget {budget}: {time.perf_counter() - started:.1f} s, {rows[-1][2].num_steps} steps")
    _print(rows, setting, args)
    return 0


def _capacity(llm: Scheduling, setting: Setting) -> float:
    rate = capacity(
        lambda rate: simulate(llm, replace(setting, rate=rate)).meets(setting.slo), first_rate=setting.rate
    )
    if not 0 < rate < float("inf"):
        bound = "no rate is low enough" if rate == 0 else "every rate is low enough"
        raise UserError(
            f"budget {setting.budget}: {bound} for the SLOs: change --itl-slo-ms or --ttft-slo-ms"
        )
    return rate


def _print(rows: Sequence[tuple[str, float, Outcome]], setting: Setting, args: Namespace) -> None:
    if args.json:
        chosen = {
            key: value for key, value in vars(args).items() if key not in ("command", "json", "calibration")
        }
        document: dict[str, Any] = {"settings": chosen, "step_cost": asdict(setting.cost)}  # type: ignore[call-overload]
        document["runs"] = [{"budget": name, "rate": rate} | asdict(result) for name, rate, result in rows]
        print(json.dumps(document))
        return
    console = stdout_console()
    console.print(outcome_table(rows, setting.slo, plain=not console.is_terminal))
    for line in batch_lines(rows):
        console.print(line, highlight=False, soft_wrap=True)


def _budget(text: str) -> Budget:
    if text == "slo":
        return "slo"
    if not (text.isascii() and text.isdigit() and int(text)):
        raise UserError(f"a budget is a number of tokens or slo, not {text!r}")
    return int(text)


def _check(args: Namespace) -> None:
    checks = {
        "--requests, --replicas and --block-size must be 1 or more": min(
            args.requests, args.replicas, args.block_size
        )
        >= 1,
        "--rate and --burstiness must be above 0": min(args.rate, args.burstiness) > 0,
        "--batch-share must be 0 or more and below 1": 0 <= args.batch_share < 1,
        "--itl-slo-ms and --ttft-slo-ms must be above 0": min(args.itl_slo_ms, args.ttft_slo_ms) > 0,
        "--safety must be 1 or more": args.safety is None or args.safety >= 1,
        "--noise must be 0 or more": args.noise >= 0,
        "--kv-tokens must be at least twice --block-size": args.kv_tokens >= 2 * args.block_size,
        "--max-model-len must be 2 or more": args.max_model_len >= 2,
    }
    for complaint, holds in checks.items():
        if not holds:
            raise UserError(complaint)


def _setting(args: Namespace) -> Setting:
    _check(args)
    return Setting(
        num_requests=args.requests,
        rate=args.rate,
        burstiness=args.burstiness,
        lengths=parse_lengths(args.lengths),
        seed=args.seed,
        batch_share=args.batch_share,
        num_replicas=args.replicas,
        route=args.route,
        budget=_budget(args.budget),
        config=SchedulerConfig(
            max_num_batched_tokens=args.max_budget,
            max_num_seqs=args.max_num_seqs,
            max_model_len=args.max_model_len,
            long_prefill_token_threshold=args.threshold,
            policy=args.policy,
        ),
        num_blocks=args.kv_tokens // args.block_size,
        block_size=args.block_size,
        cost=_cost(args),
        slo=Slo(args.itl_slo_ms / 1e3, args.ttft_slo_ms / 1e3),
        safety=args.safety,
        noise=args.noise,
        fast_forward=not args.step_by_step,
    )


def _cost(args: Namespace) -> StepCost:
    if args.calibration is not None:
        return load_calibration(args.calibration)
    return roofline(parse_shape(args.shape), args.gb_s, args.tflop_s, args.overhead_ms / 1e3)
