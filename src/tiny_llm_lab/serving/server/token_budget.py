"""The token budget of a server that was given none."""

from argparse import Namespace

import mlx.core as mx

from tiny_llm_lab.runtime.console.field_flags import given_fields
from tiny_llm_lab.runtime.steps.step_budget import UNKNOWN_BUDGET
from tiny_llm_lab.serving.options.engine_options import CPU_BUDGET, check_fitting, default_budget
from tiny_llm_lab.serving.options.engine_settings import EngineSettings
from tiny_llm_lab.types import SchedulerConfig


def scheduler_config(args: Namespace) -> SchedulerConfig:
    """What the flags of `add_engine_flags` ask for; UserError for flags that do not fit together."""
    given, own = given_fields(args, SchedulerConfig), given_fields(args, EngineSettings)
    check_fitting(given, own)
    if "max_num_batched_tokens" not in given:
        usual = SchedulerConfig.max_num_batched_tokens
        if "itl_slo_ms" not in own:
            usual = usual_budget(args.device)
        given["max_num_batched_tokens"] = default_budget(usual, given)
    return SchedulerConfig(**given)


def usual_budget(device: str | None) -> int:
    """What a model of --device `device` takes in a step where nothing else is known of it."""
    if device == "cpu" or (device is None and mx.default_device() == mx.cpu):
        return CPU_BUDGET
    return UNKNOWN_BUDGET if mx.metal.is_available() else SchedulerConfig.max_num_batched_tokens
