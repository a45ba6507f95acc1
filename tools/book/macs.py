"""The table of Macs: what a server gets there without flags, by the plan of its memory."""

from typing import Final

from tiny_llm_lab.measure.fit.command import SHORT, thousands, verdict
from tiny_llm_lab.measure.fit.models import GIB, claimed_mac, model_called
from tiny_llm_lab.runtime.memory import readable
from tiny_llm_lab.runtime.steps.step_budget import UNKNOWN_BUDGET
from tiny_llm_lab.serving.options.engine_settings import EngineSettings
from tiny_llm_lab.types import SchedulerConfig
from tools.book.page import markdown_table

MACS: Final = (8, 16, 24, 32, 48, 64, 96, 128)  # GB
_ROWS: Final = {
    "Qwen3-0.6B": "qwen3-0.6b",
    "Qwen3-1.7B": "qwen3-1.7b",
    "Qwen3-4B": "qwen3-4b",
    "Qwen3-8B": "qwen3-8b",
    "Qwen3-14B": "qwen3-14b",
    "Qwen3-32B": "qwen3-32b",
    "Qwen3-30B-A3B, Coder": "qwen3-coder-30b-a3b",
    "Qwen3.5-0.8B": "qwen3.5-0.8b",
    "Qwen3.5-4B": "qwen3.5-4b",
    "Qwen3.5-9B": "qwen3.5-9b",
    "Qwen3.5-, 3.6-, 3.8-27B": "qwen3.8-27b",
    "Qwen3.5-, 3.6-35B-A3B": "qwen3.6-35b-a3b",
    "Qwen3-Coder-Next": "qwen3-coder-next",
}


def macs_table() -> str:
    """A row for each model with 4 bits: tokens of one request · streams of 8k · states of a hybrid."""
    rows = []
    for title, name in _ROWS.items():
        model = model_called(f"{name}-4bit")
        rows.append([title, readable(model.weights), *(_cell(name, mac) for mac in MACS)])
    titles = ["4 bits", "weights", *(f"{mac} GB" for mac in MACS)]
    return markdown_table(titles, ["---", *["--:"] * (len(titles) - 1)], rows)


def _cell(name: str, mac: int) -> str:
    settings = EngineSettings(SchedulerConfig(max_num_batched_tokens=UNKNOWN_BUDGET))
    plan = verdict(model_called(f"{name}-4bit"), settings, claimed_mac(mac * GIB)).plan
    if plan is None:
        return "–"
    counts = [str(plan.num_streams(SHORT)), *([str(plan.num_states)] if plan.num_states else [])]
    return " · ".join([thousands(plan.max_model_len), *counts])
