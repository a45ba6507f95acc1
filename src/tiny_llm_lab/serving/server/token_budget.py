"""The token budget of a server that was given none."""

from argparse import Namespace
from typing import Any

import mlx.core as mx

from tiny_llm_lab.runtime.console.field_flags import given_fields
from tiny_llm_lab.serving.options.engine_options import CPU_BUDGET, check_fitting
from tiny_llm_lab.serving.options.engine_settings import EngineSettings
from tiny_llm_lab.types import SchedulerConfig


def scheduler_config(args: Namespace) -> SchedulerConfig:
    """What the flags of `add_engine_flags` ask for; UserError for flags that do not fit together."""
    given, own = given_fields(args, SchedulerConfig), given_fields(args, EngineSettings)
    check_fitting(given, own)
    if "max_num_batched_tokens" not in given:
        usual = SchedulerConfig.max_num_batched_tokens
        if "itl_slo_ms" not in own and is_on_cpu(args.device):
            usual = CPU_BUDGET
        given["max_num_batched_tokens"] = default_budget(usual, given)
    return SchedulerConfig(**given)


def default_budget(usual: int, given: dict[str, Any]) -> int:
    """`usual`, or what the fields `given` of SchedulerConfig need: decodes, a chunk of the grid, a prompt."""
    num_seqs = given.get("max_num_seqs", SchedulerConfig.max_num_seqs)
    is_chunked = given.get("enable_chunked_prefill", True)
    prompt = 0 if is_chunked else given.get("max_model_len", SchedulerConfig.max_model_len)
    return max(usual, num_seqs + given.get("chunk_grid", 0), prompt)


def is_on_cpu(device: str | None) -> bool:
    """Whether a model of --device `device` is computed on the CPU."""
    return device == "cpu" or (device is None and mx.default_device() == mx.cpu)
