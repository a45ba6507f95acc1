"""`bench-serve`: put load on an OpenAI-compatible server and report the latencies that clients see."""

import asyncio
import json
import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from tiny_llm_lab.measure.load import flags
from tiny_llm_lab.measure.load.client import LoadOptions, run_load
from tiny_llm_lab.measure.load.record import LoadRun, RequestRecord
from tiny_llm_lab.measure.load.results.result import Goodput, details, summarize
from tiny_llm_lab.measure.load.results.table import note_lines, print_kinds, result_lines
from tiny_llm_lab.measure.traffic.datasets import DatasetSettings, make_requests
from tiny_llm_lab.measure.traffic.prompts import Texts, token_counter, tokenizer_for
from tiny_llm_lab.measure.traffic.request import ArrivalSettings, CountTokens, LoadRequest, arrival_times
from tiny_llm_lab.runtime.console.field_flags import given_fields
from tiny_llm_lab.runtime.console.talk import EXIT_FAILED, EXIT_INTERRUPTED, log
from tiny_llm_lab.serving.openai_client import first_model, with_key
from tiny_llm_lab.types import UserError


def result_path(args: Namespace, model: str) -> Path:
    """Where the result goes; UserError, before anything is measured, for a folder that is not there."""
    folder = Path(args.result_dir or ".")
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder: make it, or choose another --result-dir")
    rate = getattr(args, "request_rate", "inf")
    limit = f"-concurrency{args.max_concurrency}" if args.max_concurrency else ""
    name = Path(model).name.replace(":", "-")
    made_up = f"{args.label or args.backend}-{rate}qps{limit}-{name}-{datetime.now():%Y%m%d-%H%M%S}.json"
    return folder / (args.result_filename or made_up)


def write_result(result: Mapping[str, Any], path: Path) -> None:
    """Write `result` as JSON, with a date."""
    try:
        path.write_text(json.dumps({"date": f"{datetime.now():%Y%m%d-%H%M%S}", **result}) + "\n")
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from None


HELP = "Put load on an OpenAI-compatible server, and report the latencies that its clients see."
EXAMPLES: Final = (
    ("--num-prompts 20 --random-input-len 200", "send 20 requests at once to ./pdmw run serve"),
    (
        "--request-rate 4 --num-prompts 100 --goodput ttft:500 itl:50",
        "send 4 requests a second with Poisson arrivals, and count those that meet both targets",
    ),
    (
        "--base-url http://127.0.0.1:8080 --backend openai-chat --dataset-name mixed --plot mixed.png",
        "send a mix of long and short chats, and draw a plot",
    ),
)
_CURES: Final = ("start one with ./pdmw run serve, or give its --base-url", "name one with --model")
_WARMUP_SEED: Final = 1_000_003  # texts of their own: measured prompts must not be in a prefix cache


@dataclass(frozen=True)
class _Plan:
    """Everything we decide before the first request."""

    url: str
    model: str
    tokenizer: str
    options: LoadOptions
    arrivals: ArrivalSettings
    requests: Sequence[LoadRequest]
    warmups: Sequence[LoadRequest]
    count_tokens: CountTokens | None


def add_arguments(parser: ArgumentParser) -> None:
    flags.add_server_flags(parser)
    flags.add_load_flags(parser)
    flags.add_result_flags(parser)


def run(args: Namespace) -> int:
    percentiles = flags.percentiles_of(args.metric_percentiles)
    metrics = flags.metrics_of(args.percentile_metrics)
    goodput = Goodput.parse(args.goodput) if args.goodput else None
    metadata = flags.pairs_of("--metadata", args.metadata)
    plan = _plan(args)
    path = result_path(args, plan.model) if args.save_result or args.save_detailed else None
    run, is_interrupted = _measure(plan, args.disable_tqdm)
    is_open_loop = any(each.arrival_s > 0 for each in plan.requests)
    result = summarize(run, percentiles, goodput, is_open_loop)
    configured = _configured(args, plan) | metadata
    print(*result_lines(configured | result, metrics, percentiles), sep="\n")
    print_kinds(run)
    for note in note_lines(result, run):
        log(note)
    if path is not None:
        write_result(configured | result | (details(run) if args.save_detailed else {}), path)
        log(f"wrote {path}")
    if args.plot:
        _plot(run, f"{plan.model} at {plan.url}", Path(args.plot))
    if is_interrupted:
        return EXIT_INTERRUPTED
    return 0 if run.completed else EXIT_FAILED


def _configured(args: Namespace, plan: _Plan) -> dict[str, Any]:
    return {
        "endpoint_type": args.backend,  # its name in files of older versions of vLLM, which still write it
        "backend": args.backend,
        "label": args.label or args.backend,
        "model_id": plan.model,
        "tokenizer_id": plan.tokenizer,
        "num_prompts": len(plan.requests),
        "sampling": dict(plan.options.body) or "the server's",
        "max_concurrency": args.max_concurrency,
        **{name: flags.json_value(value) for name, value in asdict(plan.arrivals).items()},
    }


def _plan(args: Namespace) -> _Plan:
    dataset = DatasetSettings(**given_fields(args, DatasetSettings))
    arrivals = ArrivalSettings(**given_fields(args, ArrivalSettings))
    options = LoadOptions(
        endpoint="chat" if args.backend == "openai-chat" else "completions",
        path=args.endpoint,
        api_key=args.api_key or os.environ.get("OPENAI_API_KEY"),
        max_concurrency=args.max_concurrency,
        ignore_eos=args.ignore_eos,
        timeout_s=args.request_timeout,
        headers=flags.pairs_of("--header", args.header),
        body=flags.sampling_body(args),
    )
    if args.num_warmups < 0:
        raise UserError(f"--num-warmups must be 0 or more, not {args.num_warmups}")
    url = args.base_url or f"http://{args.host}:{args.port}"
    headers = with_key(options.api_key, options.headers)
    model = first_model(url, _CURES, headers, model=args.model).name
    tokenizer = tokenizer_for(args.tokenizer, model)
    requests = make_requests(dataset, Texts(tokenizer, dataset.seed))
    times = arrival_times(len(requests), arrivals, dataset.seed)
    if arrivals.is_open_loop:
        requests = [replace(each, arrival_s=time) for each, time in zip(requests, times, strict=True)]
    texts = Texts(tokenizer, dataset.seed + _WARMUP_SEED)
    warmups = [
        LoadRequest(texts.exact(each.num_prompt_tokens), each.num_prompt_tokens, each.max_tokens)
        for each in requests[: args.num_warmups]
    ]
    name = args.tokenizer or (model if tokenizer else "none")
    return _Plan(url, model, name, options, arrivals, requests, warmups, token_counter(tokenizer))


def _measure(plan: _Plan, is_quiet: bool) -> tuple[LoadRun, bool]:
    """The run, and whether Ctrl-C ended it: then it holds the requests that were sent."""
    seen: list[RequestRecord] = []
    bar = Progress(
        TextColumn("requests"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=Console(file=sys.stderr),
        disable=is_quiet or not sys.stderr.isatty(),
        refresh_per_second=2,  # the server may share these cores
    )
    task = bar.add_task("", total=len(plan.requests))

    def note(record: RequestRecord) -> None:
        seen.append(record)
        bar.advance(task)

    async def measure() -> LoadRun:
        warmed = await run_load(plan.url, plan.model, plan.warmups, plan.options)
        if warmed.failed:
            raise UserError(f"a warm-up request failed: {warmed.failed[0].error}")
        counting = plan.count_tokens
        return await run_load(
            plan.url, plan.model, plan.requests, plan.options, count_tokens=counting, on_record=note
        )

    with bar:
        try:
            return asyncio.run(measure()), False
        except KeyboardInterrupt:
            return LoadRun(seen), True


def _plot(run: LoadRun, title: str, path: Path) -> None:
    # Imported here: drawing takes a second to import.
    from tiny_llm_lab.measure.load.results.table import draw

    draw(run, title, path)
    log(f"wrote {path}")
