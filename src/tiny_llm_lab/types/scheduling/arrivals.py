"""Prompts that arrive over time, for every loop that serves them."""

import sys
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from tiny_llm_lab.types.errors import UserError
from tiny_llm_lab.types.request import Clock, Completion, Prompt, Timing
from tiny_llm_lab.types.sampling import SamplingParams

# The longest sleep while nothing has arrived, so that an interrupt is handled soon.
_LONGEST_SLEEP_S = 0.05


@dataclass(frozen=True)
class Arrival:
    """A prompt that has arrived: its index in the caller's list, and its arrival on the run's clock."""

    prompt_idx: int
    prompt: Prompt
    arrival_s: float

    def refused(self, error: UserError, num_prompt_tokens: int = 0) -> Completion:
        """Returns the completion of a prompt that can't be served."""
        timing = Timing(self.arrival_s)
        return Completion(self.prompt_idx, num_prompt_tokens, (), "", "error", timing, str(error))


class Arrivals:
    """The prompts of one run that have not been started, ordered by arrival time."""

    def __init__(
        self,
        prompts: Sequence[str | Sequence[int] | Prompt],
        sampling: SamplingParams | None = None,
        clock: Clock = time.perf_counter,
    ) -> None:
        """Start the run's clock. `sampling` is for prompts that have none of their own; None = greedy.

        Raises UserError if `prompts` is a string.
        """
        if isinstance(prompts, str):
            raise UserError("prompts is one string: pass a list of prompts")
        full = [p if isinstance(p, Prompt) else Prompt(p, sampling or SamplingParams()) for p in prompts]
        self._queue = deque(sorted(enumerate(full), key=lambda numbered: numbered[1].arrival_s))
        self._clock = clock
        self._start_s = clock()

    def __len__(self) -> int:
        return len(self._queue)

    def pop(self) -> Arrival | None:
        """Remove and return the next prompt that has arrived, or None if there is none yet."""
        if not self._queue or self._due_s() > 0:
            return None
        prompt_idx, prompt = self._queue.popleft()
        return Arrival(prompt_idx, prompt, self._start_s + prompt.arrival_s)

    def wait(self) -> None:
        """Sleep until the next arrival, for at most 50 ms. Returns immediately if nothing is queued."""
        if self._queue:
            time.sleep(min(max(self._due_s(), 0), _LONGEST_SLEEP_S))

    def _due_s(self) -> float:
        return self._queue[0][1].arrival_s - (self._clock() - self._start_s)


def report_refused(completions: list[Completion]) -> list[Completion]:
    """Print on stderr, in one line, how many prompts were refused and why the longest was; return all."""
    refused = [each for each in completions if each.finish_reason == "error"]
    if refused:
        longest = max(refused, key=lambda each: each.num_prompt_tokens)  # what helps it also helps the others
        print(f"{len(refused)} of {len(completions)} prompts were refused: {longest.error}", file=sys.stderr)
    return completions
