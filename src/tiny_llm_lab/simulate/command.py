"""`simulate`: replay traffic through the scheduler of a solution, under a virtual clock."""

import json
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final, get_args

from tiny_llm_lab.commands.cli_errors import log
from tiny_llm_lab.commands.tables import print_table
from tiny_llm_lab.models.shapes import SHAPES, parse_shape
from tiny_llm_lab.solution import PACKAGES, Scheduling, load_scheduling
from tiny_llm_lab.types import Policy, SchedulerConfig, UserError

from .cluster import find_capacity, simulate
from .cost import StepCost, load_calibration, roofline
from .outcome import Outcome, Slo
from .report import COLUMNS, batch_lines, outcome_row
from .setting import ROUTES, Budget, ReplicaConfig, SimulationConfig
from .traffic import LENGTHS, parse_lengths

HELP = "Replay traffic through a solution's scheduler under a virtual clock: latencies, goodput and capacity."

# What an A100 80 GB (datasheet: 2,039 GB/s, 312 TFLOP/s dense bf16) is assumed to reach.
_GB_S: Final = 1500.0
_TFLOP_S: Final = 180.0
# Flags with their default, smallest value and help; the last name of a flag is its key in --json.
_NUMBERS: Final[dict[str, tuple[float, str, str]]] = {
    "--requests": (1000, ">= 1", "number of requests"),
    "--rate": (2.0, "> 0", "requests per second, all replicas together"),
    "--burstiness": (1.0, "> 0", "shape of the gamma intervals: 1 = Poisson, less = bursts"),
    "--batch-share": (0.0, ">= 0", "share of the requests, and of --rate, that is batch class; below 1"),
    "--seed": (0, "", "seed of arrivals, lengths and noise"),
    "--replicas": (1, ">= 1", "engines that share the requests"),
    "--long-prefill-token-threshold --threshold": (
        0,
        "",
        "most prompt tokens of a request in a step; 0 = off",
    ),
    "--max-budget": (8192, "", "largest token budget with --max-num-batched-tokens slo"),
    "--max-num-seqs": (64, "", "most requests that run at a time, per replica"),
    "--max-model-len": (32768, ">= 2", "most tokens of a request; longer prompts are cut"),
    "--kv-tokens": (320_000, "", "tokens that the KV cache of a replica holds"),
    "--block-size": (16, ">= 1", "tokens of a KV cache block"),
    "--itl-slo-ms": (50.0, "> 0", "SLO of the gap between two tokens"),
    "--ttft-slo-ms": (2000.0, "> 0", "SLO of the time to the first token"),
    "--gb-s": (_GB_S, "> 0", "memory bandwidth of the machine, in GB/s"),
    "--tflop-s": (_TFLOP_S, "> 0", "arithmetic of the machine, in TFLOP/s"),
    "--overhead-ms": (1.0, ">= 0", "fixed time of a step"),
    "--noise": (0.0, ">= 0", "standard deviation of the logarithm of a step's time"),
}
_CHOICES: Final[dict[str, tuple[str, Sequence[str], str]]] = {
    "--solution": ("ref", list(PACKAGES), "whose scheduler"),
    "--policy": ("fcfs", get_args(Policy), "order of requests"),
    "--route": ("round-robin", ROUTES, "which replica gets the next request"),
}
_TEXTS: Final[dict[str, tuple[str, str]]] = {
    "--lengths": ("sharegpt", f"{', '.join(LENGTHS)} or fixed:PROMPT:OUTPUT"),
    "--max-num-batched-tokens --budget": ("512", "tokens of a step, or slo: the latency policy chooses"),
    "--shape": ("qwen3-8b", f"the model: {', '.join(SHAPES)}, also with options as in qwen3-8b,bits=4"),
}


def add_arguments(parser: ArgumentParser) -> None:
    for flags, (number, bound, what) in _NUMBERS.items():
        _add(parser, flags, number, f"{what}; {bound}" if bound else what, type=type(number))
    for flags, (name, choices, what) in _CHOICES.items():
        _add(parser, flags, name, what, choices=choices)
    for flags, (text, what) in _TEXTS.items():
        _add(parser, flags, text, what)
    add = parser.add_argument
    add("--sweep", nargs="+", default=[], help="one row for each of these budgets, and for slo")
    add("--safety", type=float, help="factor on step times predicted for slo (default: from their errors)")
    add("--calibration", type=Path, help="measured step times: a file of bench-engine --calibration-out")
    add("--capacity", action="store_true", help="search the highest --rate with p99 inside both SLOs")
    add("--step-by-step", action="store_true", help="skip no steps: slower, the same numbers")
    add("--json", action="store_true", help="print one JSON document instead of the table")


def _add(parser: ArgumentParser, flags: str, default: object, what: str, **options: Any) -> None:
    text = f"{what} (default: %(default)s)"
    parser.add_argument(*flags.split(), dest=_dest(flags), default=default, help=text, **options)


def _dest(flags: str) -> str:
    return flags.split()[-1].removeprefix("--").replace("-", "_")


def run(args: Namespace) -> int:
    llm = load_scheduling(args.solution)
    config = _config(args)
    budgets = [_budget(text) for text in ([*args.sweep, "slo"] if args.sweep else [args.budget])]
    if args.calibration is None:
        log(
            f"step times are assumed, not measured: {args.shape} at {args.gb_s:g} GB/s, "
            f"{args.tflop_s:g} TFLOP/s, {args.overhead_ms:g} ms overhead"
        )
    runs = []
    for budget in budgets:
        started = time.perf_counter()
        each = replace(config, budget=budget)
        if args.capacity:
            each = replace(each, rate=_capacity(llm, each))
        runs.append((str(budget), each.rate, simulate(llm, each)))
        log(f"budget {budget}: {time.perf_counter() - started:.1f} s, {runs[-1][2].num_steps} steps")
    if args.json:
        print(json.dumps(_document(runs, config.replica.cost, args)))
        return 0
    print_table(COLUMNS, [outcome_row(*each, config.slo) for each in runs])
    for line in batch_lines(runs):
        print(line)
    return 0


def _capacity(llm: Scheduling, config: SimulationConfig) -> float:
    rate = find_capacity(
        lambda rate: simulate(llm, replace(config, rate=rate)).meets(config.slo), first_rate=config.rate
    )
    if not 0 < rate < float("inf"):
        bound = "no rate is low enough" if rate == 0 else "every rate is low enough"
        raise UserError(f"budget {config.budget}: {bound} for the SLOs: change --itl-slo-ms or --ttft-slo-ms")
    return rate


def _document(runs: Sequence[tuple[str, float, Outcome]], cost: StepCost, args: Namespace) -> dict[str, Any]:
    left_out = ("command", "json", "calibration")
    return {
        "settings": {key: value for key, value in vars(args).items() if key not in left_out},
        "step_cost": asdict(cost),  # type: ignore[call-overload]
        "runs": [{"budget": budget, "rate": rate} | asdict(result) for budget, rate, result in runs],
    }


def _budget(text: str) -> Budget:
    if text == "slo":
        return "slo"
    if not (text.isascii() and text.isdigit() and int(text)):
        raise UserError(f"a budget is a number of tokens or slo, not {text!r}")
    return int(text)


def _check(args: Namespace) -> None:
    for flags, (_, bound, _) in _NUMBERS.items():
        operator, _, limit = bound.partition(" ")
        value = getattr(args, _dest(flags))
        if bound and not (value > float(limit) if operator == ">" else value >= float(limit)):
            raise UserError(f"{flags} must be {bound}, not {value}")
    checks = {
        "--batch-share must be 0 or more and below 1": args.batch_share < 1,
        "--safety must be 1 or more": args.safety is None or args.safety >= 1,
        "--kv-tokens must be at least twice --block-size": args.kv_tokens >= 2 * args.block_size,
    }
    for complaint, holds in checks.items():
        if not holds:
            raise UserError(complaint)


def _config(args: Namespace) -> SimulationConfig:
    _check(args)
    scheduler = SchedulerConfig(
        max_num_batched_tokens=args.max_budget,
        max_num_seqs=args.max_num_seqs,
        max_model_len=args.max_model_len,
        long_prefill_token_threshold=args.threshold,
        policy=args.policy,
    )
    replica = ReplicaConfig(
        scheduler=scheduler,
        num_blocks=args.kv_tokens // args.block_size,
        block_size=args.block_size,
        cost=_cost(args),
        noise=args.noise,
        seed=args.seed + 2,
        fast_forward=not args.step_by_step,
    )
    return SimulationConfig(
        replica=replica,
        num_replicas=args.replicas,
        route=args.route,
        budget=_budget(args.budget),
        slo=Slo(args.itl_slo_ms / 1e3, args.ttft_slo_ms / 1e3),
        safety=args.safety,
        num_requests=args.requests,
        rate=args.rate,
        burstiness=args.burstiness,
        lengths=parse_lengths(args.lengths),
        seed=args.seed,
        batch_share=args.batch_share,
    )


def _cost(args: Namespace) -> StepCost:
    if args.calibration is not None:
        return load_calibration(args.calibration)
    return roofline(parse_shape(args.shape), args.gb_s, args.tflop_s, args.overhead_ms / 1e3)
