"""From the events of one run to tokens per second: prefill of a lone prompt, and decode of a full batch."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Final

from tiny_llm_lab.commands.cli_errors import plural
from tiny_llm_lab.types import Completion, DoneEvent, Event, PrefillEvent, UserError

from .recording import chunks_from

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


def needed_output_len(batch: int, prompt_len: int, prefill_step: int) -> int:
    """The shortest answer that leaves MIN_STEPS full decode steps when prefill and decode take turns."""
    chunks = -(-prompt_len // prefill_step)
    return (batch - 1) * chunks + _EDGE_TOKENS + MIN_STEPS


def rates_of(events: Sequence[Event], completions: Sequence[Completion]) -> Rates:
    """Rates of a run whose requests all arrived at its start.

    Raises UserError when too few steps decoded every request.
    """
    tokens, step_s, context = _decode(completions)
    return Rates(_prefill(events, completions), tokens / step_s, step_s, context)


def _prefill(events: Sequence[Event], completions: Sequence[Completion]) -> float:
    """Tokens per second: of the median prompt, or of all when they were computed together."""
    start_s = min(done.timing.arrival_s for done in completions)
    timed = [event for event in events if not isinstance(event, DoneEvent)]
    prefills = []
    for event in timed:
        if isinstance(event, PrefillEvent):
            end_s = event.time_s
            # The last chunk also computes the first token, in part after its event: MLX is lazy.
            if event.num_computed_tokens == event.num_prompt_tokens:
                end_s = max(end_s, completions[event.prompt_idx].timing.token_s[0])
            prefills.append(
                (event.prompt_idx, event.num_computed_tokens, event.time_s - start_s, end_s - start_s)
            )
    chunks = chunks_from(prefills, [event.time_s - start_s for event in timed], [0.0] * len(completions))
    own_s = [0.0] * len(completions)
    for chunk in chunks:
        own_s[chunk.prompt_idx] += chunk.end_s - chunk.start_s
    lengths = [done.num_prompt_tokens for done in completions]
    if max(own_s) > _MAX_SPREAD * min(own_s):
        return sum(lengths) / (max(chunk.end_s for chunk in chunks) - min(chunk.start_s for chunk in chunks))
    return median(length / own for length, own in zip(lengths, own_s, strict=True))


def _decode(completions: Sequence[Completion]) -> tuple[float, float, float]:
    """Tokens per step, seconds per step and mean context, while every request was decoding."""
    last = max(completions, key=lambda done: done.timing.token_s[0])
    start_s = last.timing.token_s[1]
    first_end_s = min(done.timing.token_s[-1] for done in completions)
    steps = [time_s for time_s in last.timing.token_s if start_s < time_s <= first_end_s]
    if len(steps) < MIN_STEPS:
        raise UserError(
            f"--output-len leaves {plural(len(steps), 'step')} in which all requests decode: "
            f"raise it by {MIN_STEPS - len(steps)} or more"
        )
    contexts = [
        done.num_prompt_tokens + place
        for done in completions
        for place, time_s in enumerate(done.timing.token_s)
        if start_s < time_s <= steps[-1]
    ]
    return len(contexts) / len(steps), (steps[-1] - start_s) / len(steps), fmean(contexts)
