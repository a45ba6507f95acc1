"""`serve`: an OpenAI-compatible server."""

import asyncio
import sys
from argparse import SUPPRESS, ArgumentParser, Namespace
from typing import Final, get_args

from tiny_llm_lab.runtime.console.borrow_option import add_borrow
from tiny_llm_lab.serving.options.engine_options import add_engine_flags, server_engine
from tiny_llm_lab.serving.options.engine_settings import ModelSettings
from tiny_llm_lab.serving.options.model_options import add_kernel_arguments, add_model_arguments, model_name
from tiny_llm_lab.serving.server.live.recorder import LiveView
from tiny_llm_lab.serving.server.run_server import configure_logging, run_server
from tiny_llm_lab.serving.server.served_model import start_model
from tiny_llm_lab.serving.server.settings import (
    add_chat_flags,
    add_server_flags,
    chat_settings,
    server_settings,
)
from tiny_llm_lab.serving.server.vllm_flags import VLLM_FLAGS
from tiny_llm_lab.types import Task

HELP = "Serve a model to OpenAI clients."
# How long the engine's thread may wait for a thread that runs Python, such as a chat template's.
_SWITCH_S: Final = 0.001
EXAMPLES: Final = (("--port 8000", "serve the default model to programs on this machine"),)
ELSEWHERE: Final = VLLM_FLAGS


def add_arguments(parser: ArgumentParser) -> None:
    about = "the same as --model MODEL"
    parser.add_argument("model", nargs="?", metavar="MODEL", default=SUPPRESS, help=about)
    add_served_model(parser)
    add_server_flags(parser)
    add_chat_flags(parser)


def run(args: Namespace) -> int:
    settings = model_settings(args)
    server, limits = server_settings(args)
    # With an SLO it is the budget controller that sizes the chunks.
    live = LiveView(server.has_live_controls and settings.engine.itl_slo_ms is None)
    sys.setswitchinterval(_SWITCH_S)
    configure_logging(server.enable_log_requests)
    names, chat = server.served_model_name, chat_settings(args)
    asyncio.run(run_server(lambda: start_model(settings, names, limits, chat, live), server))
    return 0


def add_served_model(parser: ArgumentParser) -> None:
    """The flags of the model and of its engine."""
    add_model_arguments(parser)
    add_borrow(parser)
    add_kernel_arguments(parser)
    about = (
        "what the model is for: generate text, embed texts (/v1/embeddings) or score documents (/v1/rerank); "
        "auto embeds if the checkpoint has sentence-transformers' modules.json (default: %(default)s)"
    )
    parser.add_argument("--task", choices=["auto", *get_args(Task)], default="auto", help=about)
    add_engine_flags(parser)


def model_settings(args: Namespace) -> ModelSettings:
    """What the flags of `add_served_model` ask for. Raises UserError for flags that do not fit together."""
    return ModelSettings(
        model=model_name(args),
        solution=args.solution,
        device=args.device,
        dtype=args.dtype,
        threads=args.threads,
        max_model_len=getattr(args, "max_model_len", None),
        engine=server_engine(args),
        fits_steps=not hasattr(args, "max_num_batched_tokens") and not hasattr(args, "itl_slo_ms"),
        task=getattr(args, "task", "generate"),
    )
