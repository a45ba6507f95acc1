"""The flags of `bench-serve`, named as in `vllm bench serve`."""

import json
import math
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from typing import Any

from tiny_llm_lab.measure.load.results.result import METRICS
from tiny_llm_lab.measure.traffic.datasets import DatasetSettings
from tiny_llm_lab.measure.traffic.request import ArrivalSettings
from tiny_llm_lab.runtime.console.field_flags import add_field_flags, at_least_one
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
    try:
        extra = json.loads(args.extra_body)
    except (ValueError, RecursionError):
        extra = None
    if not isinstance(extra, dict):
        raise UserError("--extra-body must be a JSON object, such as '{\"min_tokens\": 8}'")
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
