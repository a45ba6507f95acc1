"""`serve`: an OpenAI-compatible server."""

import asyncio
import json
import re
import sys
import tomllib
from argparse import SUPPRESS, Action, ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, get_args

from tiny_llm_lab.runtime.console.commands import CommandParser
from tiny_llm_lab.runtime.console.talk import program
from tiny_llm_lab.runtime.kv_memory import AUTO
from tiny_llm_lab.serving.async_engine.model import in_process
from tiny_llm_lab.serving.options import model_options
from tiny_llm_lab.serving.options.engine_options import add_engine_flags, server_engine
from tiny_llm_lab.serving.options.engine_settings import ModelSettings
from tiny_llm_lab.serving.server import settings
from tiny_llm_lab.serving.server.api import start_model
from tiny_llm_lab.serving.server.by_name.router import NamedSettings, serve_by_name
from tiny_llm_lab.serving.server.live.recorder import LiveView
from tiny_llm_lab.serving.server.run_server import configure_logging, run_server, run_service
from tiny_llm_lab.types import Task, UserError

# Of the server, not of one of its models.
_SHARED: Final = {each.name for each in fields(settings.ServerSettings)} | {"tensor_parallel_size"}


@dataclass(frozen=True)
class ConfigFile:
    """The words of a command line that are in a file: those for all models, and those of each table."""

    path: str
    words: Sequence[str]
    models: Mapping[str, Sequence[str]]
    pinned: frozenset[str]

    @staticmethod
    def read(path: str) -> "ConfigFile":
        """Read a file: a key is a flag without its dashes, and [models.NAME] has what NAME has of its own.

        Raises UserError for a file that can't be read, and for a table that is not a model's.
        """
        try:
            table = _underlined(tomllib.loads(Path(path).read_text("utf-8")))
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise UserError(f"--config {path}: {reason}: give a TOML file in UTF-8") from None
        models = table.pop("models", {})
        if "config" in table or not isinstance(models, dict):
            raise UserError(f"--config {path}: config and models are no flags here: write [models.NAME]")
        pinned = set()
        for name, own in models.items():
            place = f"--config {path}: [models.{name}]"
            if not isinstance(own, dict) or "model" not in own:
                raise UserError(f'{place}: its model is missing: write [models.{name}] and model = "..."')
            own = models[name] = _underlined(own)
            if shared := sorted(own.keys() & (_SHARED | {"config"})):
                raise UserError(f"{place}: {shared[0]} is not of one model: write it above the tables")
            if not isinstance(is_pinned := own.pop("pinned", False), bool):
                raise UserError(f"{place}: pinned must be true or false")
            pinned |= {name} if is_pinned else set()
        words = {name: _words(own) for name, own in models.items()}
        return ConfigFile(path, _words(table), words, frozenset(pinned))

    def parsed(self, parser: CommandParser, typed: Sequence[str], name: str = "") -> Namespace:
        """The flags of model `name`, of all without one; a flag that was `typed` wins, which has no error."""
        try:
            return parser.parse_args([*self.words, *self.models.get(name, ()), *typed])
        except UserError as error:
            place = f"[models.{name}]: " if name else ""
            raise UserError(f"--config {self.path}: {place}{error}") from None


def _underlined(table: Mapping[str, Any]) -> dict[str, Any]:
    return {key.replace("-", "_"): value for key, value in table.items()}


def _words(table: Mapping[str, object]) -> list[str]:
    """The words of a command line that say the same as a table."""
    return [word for key, value in table.items() for word in _flag(key.replace("_", "-"), value)]


def _flag(key: str, value: object) -> list[str]:
    match value:
        case bool():
            return [f"--{'' if value else 'no-'}{key}"]
        case list():
            return [word for each in value for word in _flag(key, each)]
        case dict():
            return [f"--{key}={json.dumps(value)}"]
    return [f"--{key}={value}"]


HELP = "Serve a model to OpenAI clients."
# How long the event loop may wait for a thread that runs Python, such as a chat template's.
_SWITCH_S: Final = 0.001
_SHARE_OF_ALL: Final = 0.5  # of the free memory, for the requests of several models together
_NAME: Final = re.compile(r"[\w.-]+")
EXAMPLES: Final = (
    ("--port 8000", "serve the default model to programs on this machine"),
    ("--model small=qwen3-0.6b --model large=qwen3-8b", "serve two models by name, loaded when asked for"),
)
# The model and its memory, the schedule of prompts, who may send requests.
FIRST_FLAGS: Final = (
    *("--model", "--task", "--solution", "--device", "--dtype", "--threads", "--tensor-parallel-size"),
    *("--max-model-len", "--kv-cache-memory", "--enable-prefix-caching", "--prefix-cache-dir"),
    *("--max-num-seqs", "--max-num-batched-tokens", "--enable-chunked-prefill"),
    *("--long-prefill-token-threshold", "--policy", "--itl-slo-ms", "--speculate"),
    *("--host", "--port", "--served-model-name", "--api-key", "--allowed-origins", "--ssl-certfile"),
    "--max-waiting",
)


def add_arguments(parser: ArgumentParser) -> None:
    about = "the same as --model MODEL"
    parser.add_argument("model", nargs="?", metavar="MODEL", default=SUPPRESS, help=about)
    about = "TOML file with flags as its keys, and a table [models.NAME] for each of several models"
    parser.add_argument("--config", metavar="FILE", default=SUPPRESS, help=about)
    add_served_model(parser, ModelByName)
    model_options.add_parallel_argument(parser)
    settings.add_server_flags(parser)
    settings.add_chat_flags(parser)


def run(args: Namespace) -> int:
    file, typed = None, args.argv
    if hasattr(args, "config"):
        file = ConfigFile.read(args.config)
        args = file.parsed(_parser(), typed)
    server, limits = settings.server_settings(args)
    sys.setswitchinterval(_SWITCH_S)
    configure_logging(server.enable_log_requests)
    models = by_name(args, limits) if file is None or not file.models else _of_tables(args, file, typed)
    if models:
        asyncio.run(run_service(partial(serve_by_name, models, server, limits.keep_alive_s), server))
        return 0
    model, names, chat = model_settings(args), server.served_model_name, settings.chat_settings(args)
    # With an SLO it is the budget controller that sizes the chunks.
    live = LiveView(server.has_live_controls and model.engine.itl_slo_ms is None)
    asyncio.run(run_server(lambda: start_model(model, names, limits, chat, live, in_process), server))
    return 0


def _parser() -> CommandParser:
    parser = CommandParser(prog=f"{program()} serve", allow_abbrev=False)
    add_arguments(parser)
    parser.shorten(FIRST_FLAGS)
    return parser


class ModelByName(Action):
    """--model MODEL, or --model NAME=MODEL once for each of several models."""

    def __call__(self, parser: object, args: Namespace, value: object, flag: object = None) -> None:
        name, _, model = str(value).partition("=")
        if not model or not _NAME.fullmatch(name):
            args.model = value
            return
        models = getattr(args, "models", {})
        if name in models:
            raise UserError(f"--model has the name {name} twice: give each model its own")
        args.models = {**models, name: model}


def by_name(args: Namespace, limits: settings.RequestLimits) -> dict[str, NamedSettings]:
    """The models of --model NAME=MODEL. Raises UserError for flags that do not go with several models."""
    models: dict[str, str] = getattr(args, "models", {})
    if not models and hasattr(args, "idle_unload"):
        raise UserError("--idle-unload needs names: give --model NAME=MODEL")
    if models and (args.model != "default" or hasattr(args, "served_model_name")):
        raise UserError("--model NAME=MODEL has the name: leave out --served-model-name and other models")
    if models and getattr(args, "tensor_parallel_size", 1) > 1:
        raise UserError("--tensor-parallel-size serves one model: give one --model MODEL")
    own = {name: Namespace(**vars(args) | {"model": model}) for name, model in models.items()}
    return {name: _named(each, len(own), limits) for name, each in own.items()}


def _named(
    args: Namespace, num_models: int, limits: settings.RequestLimits, is_pinned: bool = False
) -> NamedSettings:
    model = model_settings(args)
    engine = model.engine
    if num_models > 1 and engine.kv_cache_memory == AUTO:
        # Their pools grow, so what is free when one is loaded is not what the others will use.
        engine = replace(engine, kv_cache_memory=f"{_SHARE_OF_ALL / num_models:.3f}")
    return NamedSettings(replace(model, engine=engine), limits, settings.chat_settings(args), is_pinned)


def _of_tables(args: Namespace, file: ConfigFile, typed: Sequence[str]) -> dict[str, NamedSettings]:
    """The models of a file's tables, each with its own flags."""
    if args.model != "default" or hasattr(args, "models") or hasattr(args, "served_model_name"):
        raise UserError(f"--config {file.path} has models by name: leave out --model and --served-model-name")
    named = {}
    for name in file.models:
        own = file.parsed(_parser(), typed, name)
        if not _NAME.fullmatch(name) or hasattr(own, "models"):
            cure = "NAME has letters, digits, -, _ and ., and MODEL no name of its own"
            place = f"--config {file.path}: [models.{name}]"
            raise UserError(f'{place}: write [models.NAME], model = "MODEL": {cure}')
        named[name] = _named(own, len(file.models), settings.server_settings(own)[1], name in file.pinned)
    return named


def add_served_model(parser: ArgumentParser, model_action: type[Action] | None = None) -> None:
    """The flags of the model and of its engine."""
    model_options.add_model_arguments(parser, model_action=model_action)
    model_options.add_kernel_arguments(parser)
    about = (
        "what the model is for: generate text, embed texts (/v1/embeddings) or score documents (/v1/rerank); "
        "auto embeds if the checkpoint has sentence-transformers' modules.json (default: %(default)s)"
    )
    parser.add_argument("--task", choices=["auto", *get_args(Task)], default="auto", help=about)
    add_engine_flags(parser)


def model_settings(args: Namespace) -> ModelSettings:
    """What the flags of `add_served_model` ask for. Raises UserError for flags that do not fit together."""
    size = getattr(args, "tensor_parallel_size", 1)
    if size != 1:
        model_options.check_ranks(args)
    return replace(
        model_options.chosen_model(args),
        max_model_len=getattr(args, "max_model_len", None),
        engine=server_engine(args),
        tensor_parallel_size=size,
        fits_steps=not hasattr(args, "max_num_batched_tokens") and not hasattr(args, "itl_slo_ms"),
        task=getattr(args, "task", "generate"),
    )
