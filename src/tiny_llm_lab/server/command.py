"""`serve`: an OpenAI-compatible server."""

from argparse import ArgumentParser, Namespace
from typing import Final

import uvicorn

from tiny_llm_lab.commands.engine_options import EngineSettings, add_engine_flags
from tiny_llm_lab.commands.field_flags import given_fields
from tiny_llm_lab.commands.options import add_kernel_arguments, add_model_arguments, model_name
from tiny_llm_lab.types import SchedulerConfig

from .app import create_app
from .served_model import ModelSettings, start_model

HELP = "Serve a model to OpenAI clients."
EXAMPLES: Final = (("--port 8000", "serve the default model on this machine"),)


def add_arguments(parser: ArgumentParser) -> None:
    add_served_model(parser)
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument("--port", type=int, default=8000, metavar="N", help="(default: %(default)s)")


def run(args: Namespace) -> int:
    settings = model_settings(args)
    uvicorn.run(create_app(lambda: start_model(settings)), host=args.host, port=args.port)
    return 0


def add_served_model(parser: ArgumentParser) -> None:
    """The flags of the model and of its engine."""
    add_model_arguments(parser)
    add_kernel_arguments(parser)
    add_engine_flags(parser)


def model_settings(args: Namespace) -> ModelSettings:
    """What the flags of `add_served_model` ask for."""
    config = given_fields(args, SchedulerConfig)
    return ModelSettings(
        model=model_name(args),
        solution=args.solution,
        device=args.device,
        dtype=args.dtype,
        threads=args.threads,
        activation_bits=args.activation_bits,
        max_model_len=config.pop("max_model_len", None),
        engine=EngineSettings(SchedulerConfig(**config), **given_fields(args, EngineSettings)),
    )
