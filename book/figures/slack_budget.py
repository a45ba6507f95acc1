"""Draws book/src/figures/slack-budget.svg: the reference's latency policy chooses the tokens of two steps."""

from typing import Final

from book.figures.drawing import Drawing

import tiny_llm_ref
from tiny_llm_lab.types import StepSample, attention_tokens
from tiny_llm_ref.engine.slo.latency_policy import DecodeWork, PrefillWork

ITL_SLO_S: Final = 0.03
DEPTHS: Final = {0: "blue", 3000: "orange"}  # stored tokens in front of the chunk
_LEFT, _TOP, _WIDTH, _HEIGHT, _TOKENS, _MS = 48, 56, 400, 190, 400, 45


def step_times() -> tiny_llm_ref.StepTimeModel:
    """The reference's model of an invented machine, fitted to steps without noise."""
    samples = []
    for num_tokens in (1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512):
        for depth in (0, 500, 2000, 4000):
            attention = attention_tokens(depth, num_tokens)
            seconds = max(0.010, 0.004 + 9e-5 * num_tokens) + 2e-8 * attention + 1e-7 * (depth + num_tokens)
            samples.append(StepSample(num_tokens, attention, depth + num_tokens, seconds))
    return tiny_llm_ref.StepTimeModel(samples)


def budget(depth: int) -> int | None:
    """Tokens that the policy allows beside one decode, whose last token came just now."""
    policy = tiny_llm_ref.LatencyPolicy(step_times(), ITL_SLO_S, safety=1.2)
    return policy.token_budget(0.0, [DecodeWork(100, 0.0)], [PrefillWork(depth, 2000)])


def draw() -> str:
    """The figure as SVG."""
    d = Drawing("Predicted time of a step over its tokens for two depths of a chunk, and the budgets chosen.")
    d.text(12, 22, "Predicted time × safety 1.2, in ms", bold=True)
    for ms in range(0, _MS, 10):
        d.line([(_LEFT, _y(ms)), (_LEFT + _WIDTH, _y(ms))], "faint", width=1)
        d.text(_LEFT - 8, _y(ms) + 4, str(ms), "grey", anchor="end")
    for tokens in range(0, _TOKENS + 1, 100):
        d.text(_x(tokens), _TOP + _HEIGHT + 18, str(tokens), "grey", anchor="middle")
    d.line([(_LEFT, _y(30)), (_LEFT + _WIDTH, _y(30))], "red", width=2, is_dashed=True)
    d.text(_LEFT + 6, _y(30) - 6, "slack 30 ms", "red")
    model = step_times()
    for depth, role in DEPTHS.items():
        points = [(_x(n), _y(1200 * _seconds(model, depth, n))) for n in range(1, _TOKENS + 1, 3)]
        d.line([point for point in points if point[1] >= _TOP - 12], role, width=2)
        chosen = budget(depth) or 0
        d.line([(_x(chosen), _y(30)), (_x(chosen), _y(0))], role, is_dashed=True)
        d.text(_x(chosen) + 6, _y(3), str(chosen), role, bold=True)
    d.text(_LEFT + _WIDTH / 2, _TOP + _HEIGHT + 38, "tokens of the step", "grey", anchor="middle")
    for i, (depth, role) in enumerate(DEPTHS.items()):
        left = 12 + 190 * i
        d.box(left, _TOP + _HEIGHT + 52, 12, 12, role)
        d.text(left + 18, _TOP + _HEIGHT + 63, f"chunk after {depth:,} tokens")
    return d.svg()


def _seconds(model: tiny_llm_ref.StepTimeModel, depth: int, num_tokens: int) -> float:
    """A decode after 100 tokens, and the rest of the step a chunk at `depth`."""
    chunk = num_tokens - 1
    attention = attention_tokens(100, 1) + attention_tokens(depth, chunk)
    return model.predict(num_tokens, attention, 101 + depth + chunk)


def _x(tokens: float) -> float:
    return round(_LEFT + tokens / _TOKENS * _WIDTH, 1)


def _y(ms: float) -> float:
    return round(_TOP + _HEIGHT - ms / _MS * _HEIGHT, 1)
