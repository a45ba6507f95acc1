"""The flags of an engine, named as vLLM names them, and the engine that they ask for."""

import argparse
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Final, cast, get_args

import mlx.core as mx

from tiny_llm_lab.kv_memory import is_share, num_blocks_for, num_engine_blocks, parse_memory
from tiny_llm_lab.solution import Serving
from tiny_llm_lab.steps.calibration import calibrate
from tiny_llm_lab.types import (
    Model,
    OnStep,
    PagedModel,
    Policy,
    Proposer,
    SchedulerConfig,
    StepMode,
    Tokenizer,
    UserError,
)
from tiny_llm_lab.types.serving import Engine

from .options import add_async_scheduling, at_least_one

# Positions cost nothing until they are used, but a prompt of 40960 tokens would take minutes on a CPU.
LONGEST_DEFAULT: Final = 4096
LOOP_NUM_SEQS: Final = 5  # without the engine, where each has a cache row of its own
_MEMORY_DEFAULT: Final = "1G"
_NUMBERS: Final = {
    "max_num_batched_tokens": (int, "tokens of one step, decodes included"),
    "max_num_seqs": (int, f"requests that run at a time (default: {LOOP_NUM_SEQS}, with --engine 64)"),
    "max_model_len": (int, f"tokens of prompt and answer (default: the model's, {LONGEST_DEFAULT} at most)"),
    "long_prefill_token_threshold": (int, "tokens of one prompt in one step; 0 is off"),
    "max_num_partial_prefills": (int, "requests that compute their prompts at a time; 0 is any"),
    "chunk_grid": (int, "chunks end at multiples of this; 0 is off"),
    "block_size": (int, "tokens of one block of the KV cache (default: 16)"),
    "num_speculative_tokens": (at_least_one, "guesses of one step, with --speculate (default: 4)"),
    "itl_slo_ms": (float, "chunks are sized to keep gaps between tokens below this (default: off)"),
}
_CHOICES: Final = {
    "policy": (get_args(Policy), "who goes first"),
    "step_mode": (get_args(StepMode), "whether chunks and decodes share steps"),
    "kv_cache_dtype": (("auto", "int8"), "of keys and values; auto is the model's (default: auto)"),
}
_SWITCHES: Final = {
    "enable_prefix_caching": "prompts that begin alike are computed once",
    "enable_chunked_prefill": "a prompt may take several steps",
}
_NAMES: Final = (*_NUMBERS, *_CHOICES, *_SWITCHES, "async_scheduling", "kv_cache_memory", "speculate")
# Both loops have these, and week 2's names for them.
_SHARED: Final = {"max_num_seqs": "--batch-size", "max_model_len": "--max-seq-len"}
_OF_BOTH: Final = (*_SHARED, "async_scheduling")
_DRAFT: Final = "draft:"


@dataclass(frozen=True)
class EngineSettings:
    """All that an engine is built from, besides model and tokenizer."""

    config: SchedulerConfig = SchedulerConfig()
    block_size: int = 16
    kv_cache_memory: str = _MEMORY_DEFAULT
    kv_cache_dtype: str = "auto"
    enable_prefix_caching: bool = True
    async_scheduling: bool | None = None
    itl_slo_ms: float | None = None
    speculate: str = "off"
    num_speculative_tokens: int = 4

    @property
    def draft_model(self) -> str | None:
        """The name of the model that drafts; None when none does."""
        return self.speculate.removeprefix(_DRAFT) if self.speculate.startswith(_DRAFT) else None

    def shown(self) -> dict[str, Any]:
        """Every setting by name, those of the scheduler first."""
        config = {each.name: getattr(self.config, each.name) for each in fields(self.config)}
        own = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "config"}
        return config | own

    def changed(self) -> dict[str, Any]:
        """Those that are not the defaults."""
        defaults = EngineSettings().shown()
        return {name: value for name, value in self.shown().items() if value != defaults[name]}


def add_engine_arguments(parser: ArgumentParser) -> None:
    """--engine, and the flags that go with it; a flag that was not given leaves no attribute."""
    group = parser.add_argument_group("week 3's engine")
    group.add_argument("--engine", action="store_true", help="serve with the engine, whose flags follow")
    defaults = {each.name: each.default for each in fields(SchedulerConfig)}
    for name, alias in _SHARED.items():
        _add(parser, name, _NUMBERS[name][1], alias, type=at_least_one, metavar="N")
    add_async_scheduling(parser)
    for name, (kind, about) in _NUMBERS.items():
        if name not in _SHARED:
            _add(group, name, _about(about, name, defaults), type=kind, metavar="N")
    for name, (choices, about) in _CHOICES.items():
        _add(group, name, _about(about, name, defaults), choices=choices)
    for name, about in _SWITCHES.items():
        _add(group, name, f"{about} (default: on)", action=argparse.BooleanOptionalAction)
    _add(
        group,
        "speculate",
        "guess tokens: off, ngram (looks them up in the text) or draft:MODEL (default: off)",
        type=_speculation,
        metavar="HOW",
    )
    _add(
        group,
        "kv_cache_memory",
        f"a rank's keys and values: 512M, 2G, or 0.5 of what is free (default: {_MEMORY_DEFAULT} at most)",
        metavar="SIZE",
    )


def check_engine_flags(args: Namespace) -> None:
    """Raise UserError for flags that need --engine or do not fit together, whatever the model."""
    given = _given(args)
    engine_only = {name: value for name, value in given.items() if name not in _OF_BOTH}
    if not args.engine and engine_only:
        name, value = next(iter(engine_only.items()))
        raise UserError(f"{_flag(name, value)} is for the engine: add --engine")
    if given.get("block_size", 1) < 1:
        raise UserError(f"--block-size must be 1 or more, not {given['block_size']}")
    slo_ms = given.get("itl_slo_ms")
    if given.get("async_scheduling") and (slo_ms is not None or given.get("speculate", "off") != "off"):
        raise UserError("--async-scheduling plans without tokens: leave out --itl-slo-ms and --speculate")
    if slo_ms is not None and not slo_ms > 0:
        raise UserError(f"--itl-slo-ms must be above 0, not {slo_ms:g}")
    if slo_ms is not None and (given.get("chunk_grid") or not given.get("enable_chunked_prefill", True)):
        raise UserError(
            "--itl-slo-ms sizes the chunks: leave out --chunk-grid and --no-enable-chunked-prefill"
        )
    parse_memory(given.get("kv_cache_memory", _MEMORY_DEFAULT))


def engine_settings(args: Namespace, limit: int) -> EngineSettings | None:
    """What the flags ask for, for a model of `limit` positions; None without --engine.

    Raises UserError for flags that do not fit together or do not fit the model.
    """
    check_engine_flags(args)
    if not args.engine:
        return None
    given = _given(args)
    if given.get("max_model_len", 1) > limit:
        raise UserError(f"--max-model-len must be 1 to {limit} for this model, not {given['max_model_len']}")
    given.setdefault("max_model_len", min(limit, LONGEST_DEFAULT))
    known = {each.name for each in fields(SchedulerConfig)}
    config = SchedulerConfig(**{name: value for name, value in given.items() if name in known})
    return EngineSettings(config, **{name: value for name, value in given.items() if name not in known})


def build_engine(
    llm: Serving,
    model: Model,
    tokenizer: Tokenizer,
    dtype: mx.Dtype,
    settings: EngineSettings,
    num_requests: int | None = None,
    draft: Model | None = None,
    on_step: OnStep | None = None,
) -> Engine:
    """The engine of `llm`; with an SLO steps are timed first, which takes seconds.

    `draft` is the model that settings.draft_model names.

    However much memory is allowed, it gets no more blocks than its requests can fill: those that run at a
    time, or `num_requests` when there will never be more.
    """
    size, config = settings.block_size, settings.config
    kv_bits = 8 if settings.kv_cache_dtype == "int8" else None
    room = num_blocks_for(model.config, dtype, size, parse_memory(settings.kv_cache_memory), kv_bits)
    controller = None
    if settings.itl_slo_ms is not None:
        step_time = llm.StepTimeModel(calibrate(model, llm, block_size=size))
        controller = llm.BudgetController(llm.LatencyPolicy(step_time, settings.itl_slo_ms / 1000))
    return llm.Engine(
        cast(PagedModel, model),
        tokenizer,
        config,
        num_blocks=num_engine_blocks(room, size, config, num_requests),
        block_size=size,
        kv_bits=kv_bits,
        enable_prefix_caching=settings.enable_prefix_caching,
        proposer=_proposer(llm, model, settings, draft),
        budget_controller=controller,
        async_scheduling=settings.async_scheduling,
        on_step=on_step,
    )


def _proposer(llm: Serving, model: Model, settings: EngineSettings, draft: Model | None) -> Proposer | None:
    num_tokens = settings.num_speculative_tokens
    if draft is not None:
        return llm.DraftModelProposer(draft, num_tokens, model.config.vocab_size)
    return llm.NgramProposer(num_tokens=num_tokens) if settings.speculate == "ngram" else None


def reject_loop_flags(argv: Sequence[str], flags: Sequence[str]) -> None:
    """Raise UserError when one of `flags`, which the engine has no use for, is in `argv`."""
    for flag in flags:
        if any(arg.split("=")[0] == flag for arg in argv):
            raise UserError(f"{flag} is not for the engine: leave it out, or leave --engine out")


def reject_own_decisions(args: Namespace) -> None:
    """Raise UserError for flags by which each rank would decide for itself: ranks must decide alike."""
    if hasattr(args, "itl_slo_ms"):
        raise UserError(
            "--itl-slo-ms goes by the clock, and each rank has its own: with --tensor-parallel-size set "
            "--max-num-batched-tokens instead"
        )
    if hasattr(args, "kv_cache_memory") and is_share(args.kv_cache_memory):
        raise UserError(
            f"--kv-cache-memory {args.kv_cache_memory} is a share, and of each rank's own free memory: with "
            "--tensor-parallel-size say how much a rank may have, such as 512M"
        )


def _given(args: Namespace) -> dict[str, Any]:
    """The engine's flags on the command line, by the name of their setting."""
    return {name: getattr(args, name) for name in _NAMES if hasattr(args, name)}


def _add(group: argparse._ActionsContainer, name: str, about: str, *aliases: str, **how: Any) -> None:
    group.add_argument(_flag(name), *aliases, default=argparse.SUPPRESS, help=about, **how)


def _speculation(text: str) -> str:
    if text in ("off", "ngram") or text.removeprefix(_DRAFT) not in ("", text):
        return text
    raise argparse.ArgumentTypeError(f"must be off, ngram or draft:MODEL, not {text!r}")


def _about(about: str, name: str, defaults: dict[str, Any]) -> str:
    return about if "default:" in about else f"{about} (default: {defaults[name]})"


def _flag(name: str, value: object = None) -> str:
    """The flag of a setting; a switch that is False was turned off by its --no- form."""
    return ("--no-" if value is False else "--") + name.replace("_", "-")
