"""The flags of an engine, named as vLLM names them, and the settings that they ask for."""

from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from typing import Any, Final

import mlx.core as mx

from tiny_llm_lab.runtime.console import field_flags
from tiny_llm_lab.runtime.kv_memory import is_share, parse_memory
from tiny_llm_lab.runtime.steps.step_budget import UNKNOWN_BUDGET
from tiny_llm_lab.serving.options.engine_settings import (
    LONGEST_DEFAULT,
    RANK_MEMORY,
    EngineSettings,
    served_length,
)
from tiny_llm_lab.serving.options.model_options import add_async_scheduling
from tiny_llm_lab.types import SchedulerConfig, UserError, require

LOOP_NUM_SEQS: Final = 5  # without the engine, where each request has its own cache row
_MOST_SEQS: Final = f"most requests that run at a time (default: {LOOP_NUM_SEQS}, with --engine 64)"
_LONGEST: Final = (
    "most tokens of prompt and answer (default: as many as fit, up to the model's; without the engine at "
    f"most {LONGEST_DEFAULT})"
)
# A CPU reaches its full speed at about 256 tokens; larger steps only make other requests wait longer.
CPU_BUDGET: Final = 256
_SERVER_BUDGET: Final = (
    f"token budget of a step, decodes included (default: {SchedulerConfig.max_num_batched_tokens}; on a "
    f"CPU {CPU_BUDGET}, on Metal as many as take 0.1 s, both without --itl-slo-ms; at least --max-model-len "
    "without chunked prefill)"
)
# Both loops have these, also under week 2's names.
_SHARED_FLAGS: Final = (
    field_flags.Flag("max_num_seqs", _MOST_SEQS, kind=field_flags.at_least_one, alias="--batch-size"),
    field_flags.Flag("max_model_len", _LONGEST, kind=field_flags.at_least_one, alias="--max-seq-len"),
)
_SCHEDULER_FLAGS: Final = (
    field_flags.Flag("max_num_batched_tokens", "token budget of a step, decodes included"),
    field_flags.Flag("long_prefill_token_threshold", "most tokens of one prompt in a step; 0 is no limit"),
    field_flags.Flag("max_num_partial_prefills", "most requests in prefill at a time; 0 is no limit"),
    field_flags.Flag(
        "chunk_grid",
        "end chunks at multiples of N tokens; their lengths repeat, so on a GPU MLX picks the same kernels "
        "more often and fewer answers differ by rounding, without a guarantee; 0 is off",
    ),
    field_flags.Flag("policy", "which requests are scheduled first"),
    field_flags.Flag("step_mode", "mixed: chunks and decodes share a step; alternate: they take turns"),
    field_flags.Flag("enable_chunked_prefill", "compute a long prompt in chunks, over several steps"),
)


def add_engine_arguments(parser: ArgumentParser) -> None:
    """--engine, and the flags that go with it; a flag that was not given leaves no attribute."""
    field_flags.add_field_flags(parser, SchedulerConfig, _SHARED_FLAGS)
    add_async_scheduling(parser)
    group = parser.add_argument_group("week 3's engine")
    group.add_argument("--engine", action="store_true", help="use the engine; the flags below are its own")
    field_flags.add_field_flags(group, SchedulerConfig, _SCHEDULER_FLAGS)
    field_flags.add_field_flags(group, EngineSettings)


def add_engine_flags(parser: ArgumentParser) -> None:
    """The flags of the engine for a command that always uses it."""
    add_async_scheduling(parser)
    own = field_flags.Flag("max_num_seqs", "most requests that run at a time", kind=field_flags.at_least_one)
    budget = field_flags.Flag("max_num_batched_tokens", _SERVER_BUDGET)
    field_flags.add_field_flags(
        parser, SchedulerConfig, (own, _SHARED_FLAGS[1], budget, *_SCHEDULER_FLAGS[1:])
    )
    field_flags.add_field_flags(parser, EngineSettings)


def _given_settings(args: Namespace) -> dict[str, Any]:
    """The fields of `EngineSettings` whose flags were given."""
    ahead = {"async_scheduling": args.async_scheduling} if hasattr(args, "async_scheduling") else {}
    return field_flags.given_fields(args, EngineSettings) | ahead


def _alike(args: Namespace, own: dict[str, Any]) -> dict[str, Any]:
    """The fields `own` of EngineSettings, such that several ranks decide alike."""
    if getattr(args, "tensor_parallel_size", 1) == 1:
        return own
    _reject_own_decisions(args)
    return {"kv_cache_memory": RANK_MEMORY} | own | {"draft_gate": False}


def check_engine_flags(args: Namespace) -> None:
    """Raise UserError for flags that need --engine or do not fit together, whatever the model."""
    config, own = field_flags.given_fields(args, SchedulerConfig), _given_settings(args)
    shared = [flag.field for flag in _SHARED_FLAGS] + ["async_scheduling"]
    engine_only = [item for item in (config | own).items() if item[0] not in shared]
    if not args.engine and engine_only:
        raise UserError(f"{field_flags.flag_name(*engine_only[0])} needs the engine: add --engine")
    check_fitting(config, own)
    _alike(args, own)


def check_fitting(config: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    """Raise UserError for given fields of SchedulerConfig and EngineSettings that do not fit together."""
    slo_ms = own.get("itl_slo_ms")
    if own.get("async_scheduling") and (slo_ms is not None or own.get("speculate", "off") != "off"):
        raise UserError("--async-scheduling plans without tokens: leave out --itl-slo-ms and --speculate")
    if slo_ms is not None and not slo_ms > 0:
        raise UserError(f"--itl-slo-ms must be above 0, not {slo_ms:g}")
    if slo_ms is not None and (config.get("chunk_grid") or not config.get("enable_chunked_prefill", True)):
        raise UserError(
            "--itl-slo-ms sets the chunk size: leave out --chunk-grid and --no-enable-chunked-prefill"
        )
    parse_memory(own.get("kv_cache_memory", EngineSettings.kv_cache_memory))


def engine_settings(args: Namespace, limit: int) -> EngineSettings | None:
    """What the flags ask for, for a model of `limit` positions; None without --engine.

    Raises UserError for flags that do not fit together or do not fit the model.
    """
    check_engine_flags(args)
    if not args.engine:
        return None
    given = field_flags.given_fields(args, SchedulerConfig)
    fits = "max_model_len" not in given
    given["max_model_len"] = served_length(given.get("max_model_len"), limit)
    return EngineSettings(SchedulerConfig(**given), fits_length=fits, **_alike(args, _given_settings(args)))


def _reject_own_decisions(args: Namespace) -> None:
    """Raise UserError for flags that let each rank decide for itself, because ranks must decide alike."""
    has_slo, memory = hasattr(args, "itl_slo_ms"), getattr(args, "kv_cache_memory", RANK_MEMORY)
    ranks, clock = "--tensor-parallel-size", "follows a clock, and each rank has its own"
    blocks = "a rank has a part of each block, and may read it later than the others"
    share = f"--kv-cache-memory {memory} is a share, and each rank has other free memory"
    require(
        {
            f"--itl-slo-ms {clock}: with {ranks} set --max-num-batched-tokens instead": not has_slo,
            f"--draft-gate {clock}: leave it out with {ranks}": not getattr(args, "draft_gate", False),
            f"--prefix-cache-dir: {blocks}: leave it out with {ranks}": not hasattr(args, "prefix_cache_dir"),
            f"{share}: with {ranks} give a size, such as 512M": not is_share(memory),
        }
    )


def server_engine(args: Namespace) -> EngineSettings:
    """What the flags of `add_engine_flags` ask for; UserError for flags that do not fit together."""
    given, own = field_flags.given_fields(args, SchedulerConfig), _given_settings(args)
    check_fitting(given, own)
    if "max_num_batched_tokens" not in given:
        usual = SchedulerConfig.max_num_batched_tokens
        if "itl_slo_ms" not in own:
            usual = usual_budget(args.device)
        given["max_num_batched_tokens"] = default_budget(usual, given)
    return EngineSettings(SchedulerConfig(**given), **_alike(args, own))


def default_budget(usual: int, given: dict[str, Any]) -> int:
    """`usual`, or what the fields `given` of SchedulerConfig need: decodes, a chunk of the grid, a prompt."""
    num_seqs = given.get("max_num_seqs", SchedulerConfig.max_num_seqs)
    is_chunked = given.get("enable_chunked_prefill", True)
    prompt = 0 if is_chunked else given.get("max_model_len", SchedulerConfig.max_model_len)
    return max(usual, num_seqs + given.get("chunk_grid", 0), prompt)


def usual_budget(device: str | None) -> int:
    """The token budget of a step on --device `device` before anything is measured."""
    if device == "cpu" or (device is None and mx.default_device() == mx.cpu):
        return CPU_BUDGET
    return UNKNOWN_BUDGET if mx.metal.is_available() else SchedulerConfig.max_num_batched_tokens
