"""`simulate`: replay traffic through the scheduler of a solution, under a virtual clock."""

import json
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final, get_args

from tiny_llm_lab.commands.cli_errors import handle_errors, log
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
# The last name of a flag is its key in --json.
_NUMBERS: Final[dict[str, tuple[float, str]]] = {
    "--requests": (1000, "number of requests"),
    "--rate": (2.0, "requests per second, all replicas together"),
    "--burstiness": (1.0, "shape of the gamma intervals: 1 = Poisson, less = bursts"),
    "--batch-share": (0.0, "share of the requests, and of --rate, that is batch class"),
    "--seed": (0, "seed of arrivals, lengths and noise"),
    "--replicas": (1, "engines that share the requests"),
    "--long-prefill-token-threshold --threshold": (
        0,
        "most prompt tokens of one request in a step; 0 = off",
    ),
    "--max-budget": (8192, "largest token budget with --max-num-batched-tokens slo"),
    "--max-num-seqs": (64, "most requests that run at a time, per replica"),
    "--max-model-len": (32768, "most tokens of a request; longer prompts are cut"),
    "--kv-tokens": (320_000, "tokens that the KV cache of a replica holds"),
    "--block-size": (16, "tokens of a KV cache block"),
    "--itl-slo-ms": (50.0, "SLO of the gap between two tokens"),
    "--ttft-slo-ms": (2000.0, "SLO of the time to the first token"),
    "--gb-s": (_GB_S, "memory bandwidth of the machine, in GB/s"),
    "--tflop-s": (_TFLOP_S, "arithmetic of the machine, in TFLOP/s"),
    "--overhead-ms": (1.0, "fixed time of a step"),
    "--noise": (0.0, "standard deviation of the logarithm of a step's time"),
}


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--solution", default="ref", choices=list(PACKAGES), help="default: %(default)s")
    for flags, (default, help_text) in _NUMBERS.items():
        *_, last = names = flags.split()
        parser.add_argument(
            *names,
            dest=last.removeprefix("--").replace("-", "_"),
            type=type(default),
            default=default,
            metavar="N" if isinstance(default, int) else "X",
            help=f"{help_text} (default: %(default)s)",
        )
    parser.add_argument(
        "--max-num-batched-tokens",
        "--budget",
        dest="budget",
        default="512",
        metavar="TOKENS|slo",
        help="tokens of a step; slo: the latency policy chooses for every step (default: %(default)s)",
    )
    parser.add_argument(
        "--sweep",
        nargs="+",
        default=[],
        metavar="TOKENS",
        help="one row for each of these budgets and for slo",
    )
    parser.add_argument(
        "--safety",
        type=float,
        metavar="X",
        help="factor on predicted step times with slo (default: from the prediction errors)",
    )
    parser.add_argument(
        "--lengths",
        default="sharegpt",
        help=f"{', '.join(LENGTHS)} or fixed:PROMPT:OUTPUT (default: %(default)s)",
    )
    parser.add_argument(
        "--policy", default="fcfs", choices=get_args(Policy), help="order of requests (default: %(default)s)"
    )
    parser.add_argument(
        "--route",
        default="round-robin",
        choices=ROUTES,
        help="which replica gets the next request (default: %(default)s)",
    )
    parser.add_argument(
        "--shape",
        default="qwen3-8b",
        help=f"the model, for its bytes and operations: {', '.join(SHAPES)}, perhaps with options as in "
        "qwen3-8b,bits=4 (default: %(default)s)",
    )
    parser.add_argument(
        "--calibration",
        type=Path,
        metavar="FILE",
        help="measured step times instead of --shape, from bench-engine --calibration-out",
    )
    parser.add_argument(
        "--capacity", action="store_true", help="search the highest --rate whose p99 is inside both SLOs"
    )
    parser.add_argument("--step-by-step", action="store_true", help="skip no steps: slower, the same numbers")
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of the table")


@handle_errors
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
    checks = {
        "--requests, --replicas and --block-size must be 1 or more": min(
            args.requests, args.replicas, args.block_size
        )
        >= 1,
        "--rate and --burstiness must be above 0": args.rate > 0 and args.burstiness > 0,
        "--batch-share must be 0 or more and below 1": 0 <= args.batch_share < 1,
        "--itl-slo-ms and --ttft-slo-ms must be above 0": args.itl_slo_ms > 0 and args.ttft_slo_ms > 0,
        "--safety must be 1 or more": args.safety is None or args.safety >= 1,
        "--noise must be 0 or more": args.noise >= 0,
        "--kv-tokens must be at least twice --block-size": args.kv_tokens >= 2 * args.block_size,
        "--max-model-len must be 2 or more": args.max_model_len >= 2,
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
