"""One side of a comparison: an engine from flags, whose logits are read as it decodes."""

from __future__ import annotations

import os
import shlex
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from tiny_llm_lab.runtime.console.commands import CommandParser
from tiny_llm_lab.runtime.native.settings import VARIABLE
from tiny_llm_lab.serving.building import load_and_build
from tiny_llm_lab.serving.options.engine_options import add_engine_flags
from tiny_llm_lab.serving.options.engine_settings import ModelSettings
from tiny_llm_lab.serving.options.model_options import Loaded, add_kernel_arguments, add_model_arguments
from tiny_llm_lab.serving.server.command import model_settings
from tiny_llm_lab.types import LogitsProcessor, Prompt, UserError

if TYPE_CHECKING:
    from tiny_llm_lab.serving.pooling_engine import AnyEngine

Logits = NDArray[np.float32]
_MOST_BYTES: Final = 2**30


@dataclass
class Recorded:
    """The logits [V] of each step of one answer in float32, and the prompt's tokens."""

    prompt: list[int] = field(default_factory=list)
    by_answer: dict[tuple[int, ...], Logits] = field(default_factory=dict)

    def steps(self) -> Iterator[tuple[int, Logits]]:
        """(best token, logits) of each step, along the answer that was given."""
        answer: tuple[int, ...] = ()
        # Rows of rejected drafts follow other answers, and are not met.
        while (logits := self.by_answer.get(answer)) is not None:
            token = int(logits.argmax())
            yield token, logits
            answer += (token,)


def side_args(flags: str, name: str) -> Namespace:
    """The flags of one side, of a model and its engine as for `serve`, and --kernels; UserError."""
    parser = CommandParser(prog=f"diverge {name}", add_help=False, allow_abbrev=False)
    add_model_arguments(parser)
    add_kernel_arguments(parser)
    add_engine_flags(parser)
    parser.add_argument("--kernels", choices=["auto", "cpp", "mlx", "off"])
    try:
        return parser.parse_args(shlex.split(flags))
    except UserError as error:  # the parser's; its last words name a help that does not exist
        raise UserError(f"{name}: {str(error).partition(': diverge')[0]}: it takes serve's flags") from None
    except ValueError as error:
        raise UserError(f"{name}: {error}: close the quotation") from None


@contextmanager
def running(args: Namespace) -> Iterator[tuple[Loaded, AnyEngine, ModelSettings]]:
    """The model and the engine of one side; --kernels holds for it alone."""
    before = os.environ.get(VARIABLE)
    if args.kernels:
        os.environ[VARIABLE] = args.kernels
    try:
        settings = model_settings(args)
        loaded, engine = load_and_build(settings)
        try:
            yield loaded, engine, settings
        finally:
            engine.release()
    finally:
        if args.kernels:
            os.environ.pop(VARIABLE)
            os.environ.update({VARIABLE: before} if before is not None else {})


def is_float32(loaded: Loaded, settings: ModelSettings) -> bool:
    """Whether a side computes and stores in float32 only."""
    is_wide = loaded.checkpoint.dtype == mx.float32 and loaded.activation_bits == 16
    return is_wide and settings.engine.kv_cache_dtype == "auto"


def require_room(num_prompts: int, max_tokens: int, vocab_size: int) -> None:
    """Raise UserError when A's logits would take more than 1 GiB."""
    if num_prompts * max_tokens * vocab_size * 4 > _MOST_BYTES:
        raise UserError(f"A's logits would take more than {_MOST_BYTES // 2**30} GiB: lower --max-tokens")


def record(engine: AnyEngine, prompts: Sequence[Prompt]) -> list[Recorded]:
    """The logits of A, which answers greedily."""
    results = [Recorded() for _ in prompts]

    def read(to: Recorded) -> LogitsProcessor:
        def process(logits: mx.array, prompt: Sequence[int], answer: Sequence[int]) -> mx.array:
            to.prompt = to.prompt or list(prompt)
            to.by_answer[tuple(answer)] = np.array(logits.astype(mx.float32))
            return logits

        return process

    _run(engine, [replace(p, processors=(read(to),)) for p, to in zip(prompts, results, strict=True)])
    return results


def follow(engine: AnyEngine, prompts: Sequence[Prompt], recorded: Sequence[Recorded]) -> list[Recorded]:
    """The logits of B in its own schedule, while it is made to say what A said."""
    results = [Recorded() for _ in prompts]

    def force(to: Recorded, tokens: list[int]) -> LogitsProcessor:
        def process(logits: mx.array, prompt: Sequence[int], answer: Sequence[int]) -> mx.array:
            to.prompt = to.prompt or list(prompt)
            # Drafts may look past the end, or follow other tokens: those rows are never accepted.
            if len(answer) >= len(tokens) or list(answer) != tokens[: len(answer)]:
                return logits
            to.by_answer[tuple(answer)] = np.array(logits.astype(mx.float32))
            return mx.where(mx.arange(logits.size) == tokens[len(answer)], mx.array(0.0), mx.array(-mx.inf))

        return process

    forced = [
        replace(prompt, processors=(force(to, [token for token, _ in each.steps()]),))
        for prompt, to, each in zip(prompts, results, recorded, strict=True)
    ]
    _run(engine, forced)
    return results


def _run(engine: AnyEngine, prompts: Sequence[Prompt]) -> None:
    for done in engine.generate(prompts):
        if done.finish_reason == "error":
            raise UserError(f"prompt {done.prompt_idx}: {done.error}")
