"""From one run to tokens per second: prefill of a lone prompt, and decode of a full batch."""

from dataclasses import dataclass
from statistics import fmean, median
from typing import Final

from tiny_llm_lab.measure.bench.run import Run
from tiny_llm_lab.runtime.console.talk import plural
from tiny_llm_lab.types import UserError

MIN_STEPS: Final = 4
# Tokens of the last request to start that are not counted: its first, which prefill made, its second, whose
# step began before it was in the batch, and its last, which may come after the end of a request before it.
_EDGE_TOKENS: Final = 3
# Prompts whose prefills differ more than this were computed together: their own times mean nothing.
_MAX_SPREAD: Final = 10


@dataclass(frozen=True)
class Rates:
    """What one run of equal requests shows; `context` is the mean number of tokens stored per request."""

    prefill_tok_s: float
    decode_tok_s: float
    decode_step_s: float
    context: float
    # What a decode step must move: weights, keys and values of all requests, and their states there and back.
    decode_read_gb_s: float


def needed_output_len(batch: int, prompt_len: int, prefill_step: int) -> int:
    """The shortest answer that leaves MIN_STEPS full decode steps when prefill and decode alternate."""
    chunks = -(-prompt_len // prefill_step)
    return (batch - 1) * chunks + _EDGE_TOKENS + MIN_STEPS


def rates_of(run: Run) -> Rates:
    """Rates of a run whose requests all arrived at its start.

    Raises UserError when too few steps decoded every request.
    """
    tokens, step_s, context = _decode(run)
    own_bytes = context * run.kv_bytes_per_token + 2 * run.state_bytes
    num_bytes = run.weights_bytes + len(run.requests) * own_bytes
    return Rates(_prefill(run), tokens / step_s, step_s, context, num_bytes / step_s / 1e9)


def _prefill(run: Run) -> float:
    """Tokens per second: of the median prompt, or of all when they were computed together."""
    own_s = [0.0] * len(run.requests)
    for chunk in run.chunks:
        own_s[chunk.prompt_idx] += chunk.end_s - chunk.start_s
    lengths = [request.prompt_len for request in run.requests]
    if max(own_s) > _MAX_SPREAD * min(own_s):
        total_s = max(chunk.end_s for chunk in run.chunks) - min(chunk.start_s for chunk in run.chunks)
        return sum(lengths) / total_s
    return median(length / own for length, own in zip(lengths, own_s, strict=True))


def _decode(run: Run) -> tuple[float, float, float]:
    """Tokens per step, seconds per step and mean context, while every request was decoding."""
    last = max(run.timings, key=lambda timing: timing.token_s[0])
    start_s = last.token_s[1]
    first_end_s = min(timing.token_s[-1] for timing in run.timings)
    steps = [time_s for time_s in last.token_s if start_s < time_s <= first_end_s]
    if len(steps) < MIN_STEPS:
        raise UserError(
            f"--output-len leaves {plural(len(steps), 'step')} in which all requests decode: "
            f"raise it by {MIN_STEPS - len(steps)} or more"
        )
    contexts = [
        request.prompt_len + place
        for request, timing in zip(run.requests, run.timings, strict=True)
        for place, time_s in enumerate(timing.token_s)
        if start_s < time_s <= steps[-1]
    ]
    return len(contexts) / len(steps), (steps[-1] - start_s) / len(steps), fmean(contexts)
