"""How many tokens a simulated step may hold: a fixed number, or what the solution's latency policy says."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from tiny_llm_lab.solution import Scheduling
from tiny_llm_lab.types import SchedulerConfig

from .cost import StepCost

if TYPE_CHECKING:
    from .replica import Live

_CHUNKS = (16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 2048)
_STORED = (0, 512, 2048, 8192)
_DECODES = (1, 4, 16, 48)


class TokenBudget:
    """The scheduler's own limit, max_num_batched_tokens, in every step."""

    def of_step(self, scheduler: Any, live: Mapping[str, "Live"], now_s: float) -> int | None:
        """The budget of the step that begins now; None = no smaller than the scheduler's limit."""
        return None

    def record(self, num_tokens: int, num_attended: int, num_stored: int, seconds: float) -> None:
        """A step took so long."""


class SloBudget(TokenBudget):
    """The solution's LatencyPolicy, whose model was fitted to measured steps and learns from each step."""

    def __init__(self, llm: Scheduling, policy: Any, config: SchedulerConfig) -> None:
        self._llm = llm
        self._policy = policy
        self._config = config

    def of_step(self, scheduler: Any, live: Mapping[str, "Live"], now_s: float) -> int | None:
        decodes, prefills, room = [], [], self._config.max_num_batched_tokens
        running = scheduler.running
        for request in running:
            missing = request.num_tokens - request.num_computed_tokens
            if missing == 1 and request.output_token_ids:
                last_s = live[request.request_id].last_s
                decodes.append(self._llm.DecodeWork(request.num_computed_tokens, last_s))
            else:
                prefills.append(self._prefill(request, missing))
                room -= missing
        places = self._config.max_num_seqs - len(running)
        # Whom the step could reach: the policy need not look at a queue of thousands.
        for request in scheduler.waiting[: max(0, places)]:
            if room <= 0:
                break
            missing = request.num_tokens - request.num_computed_tokens
            prefills.append(self._prefill(request, missing))
            room -= missing
        budget: int | None = self._policy.token_budget(now_s, decodes, prefills) if prefills else None
        return budget

    def record(self, num_tokens: int, num_attended: int, num_stored: int, seconds: float) -> None:
        self._policy.model.record(num_tokens, num_attended, num_stored, seconds)

    def _prefill(self, request: Any, missing: int) -> Any:
        threshold = self._config.long_prefill_token_threshold
        num_new = min(missing, threshold) if threshold else missing
        return self._llm.PrefillWork(request.num_computed_tokens, num_new, request.arrival_s)


def measured_steps(llm: Scheduling, cost: StepCost) -> Iterator[Any]:
    """Samples as a calibration would take them: decodes, chunks, and both together, at several depths."""
    for stored in _STORED:
        decodes = [(count, count * (stored + 1), count * (stored + 1)) for count in _DECODES]
        chunks = [(n, n * stored + n * (n + 1) // 2, stored + n) for n in _CHUNKS]
        mixed = [
            (a[0] + b[0], a[1] + b[1], a[2] + b[2])
            for a in decodes
            for b in chunks
            if b[0] in (64, 256, 1024)
        ]
        for work in decodes + chunks + mixed:
            yield llm.StepSample(*work, cost.seconds(*work))
