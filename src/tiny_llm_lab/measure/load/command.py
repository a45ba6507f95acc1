"""`bench-serve`: put load on an OpenAI-compatible server and report the latencies that clients see.

Its flags are named as in `vllm bench serve`.
"""

import asyncio
import json
import math
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

from tiny_llm_lab.measure.bench.host import busy_note, host_facts
from tiny_llm_lab.measure.load.client import LoadOptions, LoadRun, RequestRecord, run_load
from tiny_llm_lab.measure.load.results.result import METRICS, Goodput, details, summarize
from tiny_llm_lab.measure.load.results.table import draw, note_lines, print_kinds, result_lines
from tiny_llm_lab.measure.traffic.datasets import DatasetSettings, make_requests
from tiny_llm_lab.measure.traffic.prompts import Texts, token_counter, tokenizer_for
from tiny_llm_lab.measure.traffic.request import ArrivalSettings, CountTokens, LoadRequest, arrival_times
from tiny_llm_lab.runtime.console.field_flags import add_field_flags, at_least_one, given_fields
from tiny_llm_lab.runtime.console.input_file import json_object
from tiny_llm_lab.runtime.console.talk import EXIT_FAILED, EXIT_INTERRUPTED, log, writing
from tiny_llm_lab.serving.openai_client import first_model, with_key
from tiny_llm_lab.serving.options.sampling_options import add_draw_arguments, given_draws
from tiny_llm_lab.types import UserError


def add_server_flags(parser: ArgumentParser) -> None:
    """Which server, and how it is asked."""
    add = parser.add_argument_group("server").add_argument
    backends = ("openai", "vllm", "openai-chat")
    about = "API to use: completions or chat (default: %(default)s)"
    add("--backend", choices=backends, default="openai", help=about)
    add("--base-url", metavar="URL", help="address of the server (default: http://HOST:PORT)")
    add("--host", default="127.0.0.1", help="host of the server (default: %(default)s)")
    add("--port", type=int, default=8000, metavar="N", help="port of the server (default: %(default)s)")
    about = "path of the route (default: /v1/completions or /v1/chat/completions, by --backend)"
    add("--endpoint", metavar="PATH", help=about)
    add("--model", metavar="NAME", help="model to ask (default: the first that the server lists)")
    about = "tokenizer to count with; none counts words (default: the model's, if it is on this machine)"
    add("--tokenizer", metavar="MODEL", help=about)
    add("--api-key", metavar="KEY", help="API key to send (default: OPENAI_API_KEY from the environment)")
    about = "HTTP header to send with every request; may be repeated"
    add("--header", metavar="NAME=VALUE", action="append", default=[], help=about)
    about = "most seconds for a request (default: %(default)g)"
    add("--request-timeout", metavar="S", type=float, default=600.0, help=about)
    about = "most requests in flight at a time (default: no limit)"
    add("--max-concurrency", type=at_least_one, metavar="N", help=about)
    add("--ignore-eos", action="store_true", help="ask for answers of full length, if the server supports it")
    add("--extra-body", metavar="JSON", help="JSON object with more fields for every request")
    add_draw_arguments(parser, "server")


def add_load_flags(parser: ArgumentParser) -> None:
    """The requests, and when to send them."""
    add_field_flags(parser.add_argument_group("requests"), DatasetSettings)
    group = parser.add_argument_group("arrivals")
    add_field_flags(group, ArrivalSettings)
    about = "number of warm-up requests, not measured (default: 0)"
    group.add_argument("--num-warmups", type=int, default=0, metavar="N", help=about)


def add_result_flags(parser: ArgumentParser) -> None:
    """What to print and to keep."""
    add = parser.add_argument_group("result").add_argument
    about = "latency targets in ms that make a request good, such as ttft:500 itl:50"
    add("--goodput", nargs="+", metavar="NAME:MS", help=about)
    every = ",".join(METRICS)
    about = "latencies to show, separated by commas (default: %(default)s)"
    add("--percentile-metrics", default=every, metavar="NAMES", help=about)
    about = "percentiles to show, separated by commas (default: %(default)s)"
    add("--metric-percentiles", default="99", metavar="LIST", help=about)
    add("--save-result", action="store_true", help="write the result to a JSON file")
    add("--save-detailed", action="store_true", help="with --save-result, also write every request and token")
    add("--result-dir", metavar="DIR", help="folder for the result file (default: the current one)")
    about = "name of the result file (default: made from label, rate, model and time)"
    add("--result-filename", metavar="FILE", help=about)
    add("--label", help="label in the name of the result file (default: the backend)")
    add("--metadata", nargs="*", metavar="KEY=VALUE", default=[], help="facts to keep in the JSON file")
    add("--plot", metavar="FILE", help="draw TTFT, ITL, and ITL over time into this PNG file")
    add("--disable-tqdm", action="store_true", help="do not show the progress bar")


def sampling_body(args: Namespace) -> dict[str, Any]:
    """The fields of every request that flags ask for."""
    if args.extra_body is None:
        return given_draws(args)
    if (extra := json_object(args.extra_body)) is None:
        raise UserError("--extra-body must be a JSON object, such as '{\"min_tokens\": 8}'")
    if any(extra.get(name) not in (None, 1) for name in ("n", "best_of")):
        raise UserError("--extra-body must leave n at 1: a request's latencies are one answer's")
    return given_draws(args) | extra


def percentiles_of(text: str) -> list[float]:
    """--metric-percentiles as numbers."""
    try:
        values = [float(part) for part in text.split(",")]
    except ValueError:
        values = [math.nan]
    if not all(0 < value <= 100 for value in values):
        raise UserError(
            f"--metric-percentiles must be numbers above 0 and at most 100, such as 50,99, not {text}"
        )
    return values


def metrics_of(text: str) -> list[str]:
    """--percentile-metrics as names."""
    names = text.split(",")
    if unknown := [name for name in names if name not in METRICS]:
        raise UserError(f"--percentile-metrics: unknown {unknown[0]!r}: choose from {','.join(METRICS)}")
    return names


def pairs_of(flag: str, texts: Sequence[str]) -> dict[str, str]:
    """NAME=VALUE texts as a dictionary."""
    pairs = [text.partition("=") for text in texts]
    for name, sign, value in pairs:
        if not (name and sign):
            raise UserError(f"{flag} must be NAME=VALUE, not {name + sign + value!r}")
    return {name: value for name, _, value in pairs}


def json_value(value: object) -> object:
    """JSON has no infinity: vLLM writes "inf"."""
    return "inf" if value == math.inf else value


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
    with writing(path):
        path.write_text(json.dumps({"date": f"{datetime.now():%Y%m%d-%H%M%S}", **result}) + "\n")


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
    add_server_flags(parser)
    add_load_flags(parser)
    add_result_flags(parser)


def run(args: Namespace) -> int:
    percentiles = percentiles_of(args.metric_percentiles)
    metrics = metrics_of(args.percentile_metrics)
    goodput = Goodput.parse(args.goodput) if args.goodput else None
    metadata = pairs_of("--metadata", args.metadata)
    plan, host = _plan(args), host_facts()
    path = result_path(args, plan.model) if args.save_result or args.save_detailed else None
    run, is_interrupted = _measure(plan, args.disable_tqdm)
    is_open_loop = any(each.arrival_s > 0 for each in plan.requests)
    result = summarize(run, percentiles, goodput, is_open_loop)
    configured = _configured(args, plan) | metadata
    print(*result_lines(configured | result, metrics, percentiles), sep="\n")
    print_kinds(run)
    for note in filter(None, (*note_lines(result, run), busy_note(host))):
        log(note)
    if path is not None:
        write_result(configured | result | (details(run) if args.save_detailed else {}), path)
        log(f"wrote {path}")
    if args.plot:
        draw(run, f"{plan.model} at {plan.url}", Path(args.plot))
        log(f"wrote {Path(args.plot)}")
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
        **{name: json_value(value) for name, value in asdict(plan.arrivals).items()},
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
        headers=pairs_of("--header", args.header),
        body=sampling_body(args),
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
