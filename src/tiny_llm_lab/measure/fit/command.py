"""`fit`: which models this machine, or another one, can serve, and with how much context."""

import json
from argparse import ArgumentParser, Namespace
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from tiny_llm_lab.measure.fit.models import KnownModel, claimed_mac, dtype_of, known_models, model_called
from tiny_llm_lab.measure.simulate.setting import Calibrated, load_calibration
from tiny_llm_lab.runtime.console.tables import KEEP, Column, table_lines
from tiny_llm_lab.runtime.console.talk import EXIT_FAILED, program, wrapped_lines
from tiny_llm_lab.runtime.kv_memory import block_bytes, parse_size
from tiny_llm_lab.runtime.memory import DeviceMemory, device_memory, readable
from tiny_llm_lab.runtime.models.loading import select_device
from tiny_llm_lab.runtime.steps.runner import chunk, work_of
from tiny_llm_lab.runtime.steps.step_budget import UNKNOWN_BUDGET
from tiny_llm_lab.serving.memory_plan import MemoryPlan, Planned, plan_memory
from tiny_llm_lab.serving.options.engine_options import add_engine_flags, server_engine
from tiny_llm_lab.serving.options.engine_settings import EngineSettings, served_length
from tiny_llm_lab.types import UserError

HELP = "Say which models fit into this machine's memory, or another's, and what they can serve there."
EXAMPLES: Final = (
    ("", "all models that have a name, the largest first"),
    ("qwen3.5-9b-4bit --memory 24G", "one model on a Mac of 24 GB"),
)
SHORT, LONG = 8192, 32_768  # tokens of a request


@dataclass(frozen=True)
class Verdict:
    """A model, and its plan, or why there is none."""

    model: KnownModel
    plan: MemoryPlan | None
    complaint: str = ""
    with_drafts: int = 0  # tokens of one request with --speculate mtp; 0: it does not fit


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("model", nargs="?", help="a name, a folder or random:NAME (default: all names)")
    about = "plan for a Mac with so much memory, such as 24G (default: this machine)"
    parser.add_argument("--memory", metavar="SIZE", help=about)
    about = "step times of the model, from report or bench-engine --calibration-out: how long prompts take"
    parser.add_argument("--calibration", metavar="FILE", help=about)
    parser.add_argument("--device", choices=["gpu", "cpu"], help="of this machine (default: the GPU if any)")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    add_engine_flags(parser)


def run(args: Namespace) -> int:
    if args.calibration and (args.json or not args.model):
        raise UserError("--calibration adds a line to the table of one model: name it, and leave out --json")
    select_device(args.device)
    here = device_memory() if args.memory is None else claimed_mac(parse_size(args.memory))
    settings = server_engine(args)
    if args.memory is not None and not hasattr(args, "max_num_batched_tokens"):
        budget = replace(settings.config, max_num_batched_tokens=UNKNOWN_BUDGET)
        settings = replace(settings, config=budget)
    length = getattr(args, "max_model_len", None)
    speed = load_calibration(Path(args.calibration)) if args.calibration else None
    models = [model_called(args.model)] if args.model else list(known_models())
    verdicts = sorted((verdict(each, settings, here, length) for each in models), key=_order)
    if args.json:
        print(json.dumps({"free": here.free, "models": [_document(each) for each in verdicts]}))
    else:
        print(_one(verdicts[0], here, speed, settings) if args.model else _all(verdicts, here))
        if verdicts[0].plan:
            device = ["--device", args.device] if args.device else []
            print("", " ".join([program(), "serve", *device, "--model", verdicts[0].model.name]), sep="\n")
    return 0 if any(each.plan for each in verdicts) else EXIT_FAILED


def verdict(
    model: KnownModel, settings: EngineSettings, here: DeviceMemory, length: int | None = None
) -> Verdict:
    """Whether `model` can be served with these settings where `here` is free."""
    model = model.as_served(settings)
    config, has_drafts = model.config, settings.speculate != "off"
    planned = Planned(config, dtype_of(model), settings, length, model.weights, has_drafts=has_drafts)
    try:
        if length is not None:
            served_length(length, config.max_position_embeddings)
        plan = plan_memory(planned, here)
    except UserError as error:
        return Verdict(model, None, str(error))
    own = None
    if config.hybrid and not has_drafts:
        own = verdict(model, replace(settings, speculate="mtp"), here, length).plan
    return Verdict(model, plan, with_drafts=own.max_model_len if own else 0)


def _order(each: Verdict) -> tuple[int, int]:
    """Those that serve a long request first, of these the largest model."""
    longest = each.plan.max_model_len if each.plan else 0
    return -sum(longest >= count for count in (1, SHORT, LONG)), -each.model.num_parameters


def thousands(num_tokens: int) -> str:
    """8k and the like, rounded down."""
    return f"{num_tokens // 1024}k" if num_tokens >= 1024 else str(num_tokens)


def _on_disk(model: KnownModel, num_tokens: int, kv_bits: int | None) -> int:
    """Bytes of a prefix in --prefix-cache-dir: its keys and values, and the states at its end."""
    return block_bytes(model.config, dtype_of(model), num_tokens, kv_bits) + model.config.state_bytes


def _row(model: KnownModel, plan: MemoryPlan, with_drafts: int) -> list[str]:
    counts = [plan.num_streams(SHORT), plan.num_streams(LONG), plan.num_states or "-"]
    lengths = [thousands(each) if each else "-" for each in (plan.max_model_len, with_drafts)]
    return [model.name, readable(model.weights), lengths[0], *map(str, counts), lengths[1]]


def _all(verdicts: list[Verdict], here: DeviceMemory) -> str:
    titles = ("weights", "one request", "x 8k", "x 32k", "states", "mtp")
    columns = [Column("model, 4 bits", KEEP, is_left=True), *(Column(title, KEEP) for title in titles)]
    rows = [_row(each.model, each.plan, each.with_drafts) for each in verdicts if each.plan]
    lines = [f"{readable(here.free)} are there for a model; streams of 8k and 32k tokens:", ""]
    lines += table_lines(columns, rows, None) if rows else []
    if refused := [each for each in verdicts if each.plan is None]:
        lines += ["", "these do not fit:"]
        for each in refused:
            lines += wrapped_lines(f"{each.model.name:26} {each.complaint}", 80, " " * 27)
    return "\n".join(lines)


def _one(each: Verdict, here: DeviceMemory, speed: Calibrated | None, settings: EngineSettings) -> str:
    name, plan = each.model.name, each.plan
    if plan is None:
        return f"{name} does not fit: {each.complaint}"
    rows = {
        "for a model": readable(here.free),
        "this process": readable(plan.process),
        "weights": readable(plan.weights),
        "a step": readable(plan.step),
        "blocks": f"{readable(plan.pool)}: {plan.num_blocks:,} of {plan.block_size} tokens",
    }
    if each.model.tower:
        rows["weights"] += f", {readable(each.model.tower)} of them for pictures"
    if plan.num_states:
        of_one = readable(plan.state_bytes)
        rows["states"] = f"{readable(plan.states)}: {plan.num_states} of {of_one}, running and snapshots"
    rows["one request"] = f"{plan.max_model_len:,} tokens"
    rows["streams"] = f"{plan.num_streams(SHORT)} of 8k tokens, {plan.num_streams(LONG)} of 32k"
    if each.with_drafts:
        rows["with --speculate mtp"] = f"{each.with_drafts:,} tokens, if the checkpoint has its draft layer"
    rows["on disk"] = f"{readable(_on_disk(each.model, LONG, settings.kv_bits))} for a prefix of 32k tokens"
    if speed is not None:
        budget = settings.config.max_num_batched_tokens
        times = [f"{prompt_s(speed, count, budget):.1f} s for {thousands(count)}" for count in (SHORT, LONG)]
        rows["first token"] = ", ".join(times) + " tokens, alone"
    width = max(map(len, rows))
    lines = [f"{name}", *(f"{title:{width}}  {text}" for title, text in rows.items())]
    return "\n".join(lines)


def prompt_s(speed: Calibrated, num_tokens: int, budget: int) -> float:
    """Seconds until a prompt of `num_tokens` is computed, alone, in chunks of `budget`."""
    seconds = 0.0
    for start in range(0, num_tokens, budget):
        seconds += speed.seconds(*work_of(chunk(start, min(budget, num_tokens - start))))
    return seconds


def _document(each: Verdict) -> dict[str, Any]:
    plan = each.plan and asdict(each.plan) | {
        "total": each.plan.total,
        "streams_8k": each.plan.num_streams(SHORT),
        "streams_32k": each.plan.num_streams(LONG),
    }
    head = {"model": each.model.name, "bits": each.model.bits, "weights": each.model.weights}
    return head | {"plan": plan, "error": each.complaint or None, "max_model_len_with_mtp": each.with_drafts}
