"""The flags of an engine, named as vLLM names them, and the engine that they ask for."""

import argparse
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Final, get_args

import mlx.core as mx

from tiny_llm_lab.kv_memory import is_share, num_blocks_for, parse_memory
from tiny_llm_lab.solution import Engine, Serving
from tiny_llm_lab.steps.calibration import calibrate
from tiny_llm_lab.types import Model, Policy, SchedulerConfig, StepMode, Tokenizer, UserError

# Positions cost nothing until they are used, but a prompt of 40960 tokens would take minutes on a CPU.
_LONGEST_DEFAULT: Final = 4096
_MEMORY_DEFAULT: Final = "1G"
_NUMBERS: Final = {
    "max_num_batched_tokens": (int, "tokens of one step, decodes included"),
    "max_num_seqs": (int, "requests that run at a time"),
    "max_model_len": (int, f"tokens of prompt and answer (default: the model's, {_LONGEST_DEFAULT} at most)"),
    "long_prefill_token_threshold": (int, "tokens of one prompt in one step; 0 is off"),
    "chunk_grid": (int, "chunks end at multiples of this; 0 is off"),
    "block_size": (int, "tokens of one block of the KV cache (default: 16)"),
    "itl_slo_ms": (float, "steps are made to keep gaps between tokens below this (default: off)"),
}
_CHOICES: Final = {
    "policy": (get_args(Policy), "who goes first"),
    "step_mode": (get_args(StepMode), "whether chunks and decodes share steps"),
    "kv_cache_dtype": (("auto", "int8"), "of keys and values; auto is the model's (default: auto)"),
    "speculate": (("off", "ngram"), "guess tokens by looking them up in the text (default: off)"),
}
_SWITCHES: Final = {
    "enable_prefix_caching": "prompts that begin alike are computed once",
    "enable_chunked_prefill": "a prompt may take several steps",
}
_EXTRAS: Final = {"async_scheduling": "a step of decodes begins before the one in front is read"}
_NAMES: Final = (*_NUMBERS, *_CHOICES, *_SWITCHES, *_EXTRAS, "kv_cache_memory")


@dataclass(frozen=True)
class EngineSettings:
    """All that an engine is built from, besides model and tokenizer."""

    config: SchedulerConfig = SchedulerConfig()
    block_size: int = 16
    kv_cache_memory: str = _MEMORY_DEFAULT
    kv_cache_dtype: str = "auto"
    enable_prefix_caching: bool = True
    async_scheduling: bool = False
    itl_slo_ms: float | None = None
    speculate: str = "off"

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
    for name, (kind, about) in _NUMBERS.items():
        _add(group, name, _about(about, name, defaults), type=kind)
    for name, (choices, about) in _CHOICES.items():
        _add(group, name, _about(about, name, defaults), choices=choices)
    for name, about in _SWITCHES.items():
        _add(group, name, f"{about} (default: on)", action=argparse.BooleanOptionalAction)
    for name, about in _EXTRAS.items():
        _add(group, name, f"{about} (default: off)", action=argparse.BooleanOptionalAction)
    _add(
        group,
        "kv_cache_memory",
        f"a rank's keys and values: 512M, 2G, or 0.5 of what is free (default: {_MEMORY_DEFAULT} at most)",
    )


def engine_settings(args: Namespace, limit: int) -> EngineSettings | None:
    """What the flags ask for, for a model of `limit` positions; None without --engine.

    Raises UserError for settings that do not fit together, and for flags that need --engine.
    """
    given = {name: getattr(args, name) for name in _NAMES if hasattr(args, name)}
    if not args.engine:
        if given:
            raise UserError(f"{_flags(given)[0]} is for the engine: add --engine")
        return None
    if given.get("max_model_len", 1) > limit:
        raise UserError(f"--max-model-len must be 1 to {limit} for this model, not {given['max_model_len']}")
    given.setdefault("max_model_len", min(limit, _LONGEST_DEFAULT))
    known = {each.name for each in fields(SchedulerConfig)}
    config = SchedulerConfig(**{name: value for name, value in given.items() if name in known})
    settings = EngineSettings(config, **{name: value for name, value in given.items() if name not in known})
    if settings.block_size < 1:
        raise UserError(f"--block-size must be 1 or more, not {settings.block_size}")
    if settings.async_scheduling and (settings.itl_slo_ms is not None or settings.speculate != "off"):
        raise UserError(
            "--async-scheduling plans before tokens are known: leave out --itl-slo-ms and --speculate"
        )
    if settings.itl_slo_ms is not None and not settings.itl_slo_ms > 0:
        raise UserError(f"--itl-slo-ms must be above 0, not {settings.itl_slo_ms:g}")
    parse_memory(settings.kv_cache_memory)  # now, and not after the model is loaded
    return settings


def build_engine(
    llm: Serving,
    model: Model,
    tokenizer: Tokenizer,
    dtype: mx.Dtype,
    settings: EngineSettings,
    num_requests: int | None = None,
) -> Engine:
    """The engine of `llm`; with an SLO steps are timed first, which takes seconds.

    However much memory is allowed, it gets no more blocks than its requests can fill: those that run at a
    time, or `num_requests` when there will never be more.
    """
    size, config = settings.block_size, settings.config
    kv_bits = 8 if settings.kv_cache_dtype == "int8" else None
    room = num_blocks_for(model.config, dtype, size, parse_memory(settings.kv_cache_memory), kv_bits)
    most = config.max_num_seqs if num_requests is None else min(config.max_num_seqs, num_requests)
    usable = most * -(-config.max_model_len // size)
    pacer = None
    if settings.itl_slo_ms is not None:
        step_time = llm.StepTimeModel(calibrate(model, llm, block_size=size))
        pacer = llm.StepPacer(llm.LatencyPolicy(step_time, settings.itl_slo_ms / 1000))
    return llm.Engine(
        model,
        tokenizer,
        config,
        num_blocks=min(room, usable),
        block_size=size,
        kv_bits=kv_bits,
        enable_prefix_caching=settings.enable_prefix_caching,
        proposer=llm.NgramProposer() if settings.speculate == "ngram" else None,
        pacer=pacer,
        async_scheduling=settings.async_scheduling,
    )


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


def _add(group: Any, name: str, about: str, **how: Any) -> None:
    group.add_argument(*_flags([name]), default=argparse.SUPPRESS, help=about, **how)


def _about(about: str, name: str, defaults: dict[str, Any]) -> str:
    return about if "default:" in about else f"{about} (default: {defaults[name]})"


def _flags(names: Any) -> list[str]:
    return ["--" + name.replace("_", "-") for name in names]
