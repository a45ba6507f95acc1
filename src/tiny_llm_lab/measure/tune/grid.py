"""The settings that `tune` tries, and the flags that make a server of one."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import product

from tiny_llm_lab.measure.simulate.setting import Setting
from tiny_llm_lab.runtime.console.field_flags import flag_name
from tiny_llm_lab.types import UserError


def settings_of(
    base: Setting, budgets: Sequence[str], thresholds: Sequence[int], seqs: Sequence[int]
) -> list[Setting]:
    """Every combination that the engine takes, by its own rules; a threshold counts only below the budget.

    Raises UserError with the last refusal if it takes none.
    """
    found, refusal = list[Setting](), "every threshold reaches its budget"
    for budget, threshold, count in product(budgets, thresholds, seqs):
        setting = replace(base, budget=budget, threshold=threshold, max_num_seqs=count)
        try:
            limit = setting.scheduler().max_num_batched_tokens
        except UserError as error:
            refusal = str(error)
            continue
        if threshold < limit:
            found.append(setting)
    if not found:
        raise UserError(f"no combination can be tried: {refusal}")
    return found


def serve_flags(setting: Setting) -> tuple[str, ...]:
    """The flags of `serve` with which its engine schedules as the simulated one; without --max-model-len."""
    names = ("max_num_batched_tokens", "long_prefill_token_threshold", "max_num_seqs", "policy")
    config = setting.scheduler()
    values = {name: getattr(config, name) for name in names} | {"block_size": setting.block_size}
    if setting.fixed_budget is None:
        values["itl_slo_ms"] = f"{setting.itl_slo_ms:g}"
    return tuple(text for name, value in values.items() for text in (flag_name(name), str(value)))
