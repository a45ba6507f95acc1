"""One engine without a model: the solution's scheduler, step after step, under a virtual clock."""

import math
import random
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final

from tiny_llm_lab.solution import Scheduling
from tiny_llm_lab.types import StepPlan, attention_tokens
from tiny_llm_lab.types.serving import BudgetController, TokenSequence

from .setting import ReplicaConfig
from .state import SimRequestState
from .stats import FinishedRequest, RunStats
from .traffic import SimRequest

_TOKEN: Final = (0,)  # a sampled token: the simulation only counts tokens


class Replica:
    """Runs what is submitted. `now_s` is the end of the last step, or the arrival that ended an idle time.

    Fast forward: in a window of equal steps, each running request gets one token a step and nothing else
    happens. The clock and the statistics go step by step; the scheduler is shown the whole window as one
    step in which every draft was accepted.
    """

    def __init__(
        self,
        llm: Scheduling,
        config: ReplicaConfig,
        itl_slo_s: float,
        controller: BudgetController | None = None,
    ) -> None:
        """`controller` chooses the budget of every step; None: the scheduler's own limit."""
        self.config = config
        self.now_s = 0.0
        self.stats = RunStats()
        self._llm = llm
        self._pool = llm.BlockPool(config.num_blocks, config.block_size)
        self._scheduler = llm.Scheduler(config.scheduler, self._pool)
        self._itl_slo_s = itl_slo_s
        self._controller = controller
        self._inbox: deque[SimRequest] = deque()
        self._states: dict[str, SimRequestState] = {}
        self._rng = random.Random(config.seed)
        self._num_finished_last = 0  # in the last step
        self._window = range(0)  # stored tokens of the steps that the window still has
        self._window_ends: list[float] = []  # of its steps so far, of which the scheduler knows nothing yet

    def submit(self, request: SimRequest) -> None:
        """Take a request, in order of arrival; the first step after its arrival sees it."""
        if not self._states and not self._inbox:
            self.now_s = max(self.now_s, request.arrival_s)
        self._inbox.append(request)

    def num_unfinished(self, at_s: float) -> int:
        """Requests that had not finished at `at_s`, which may lie within the last step."""
        finished_later = self._num_finished_last if at_s < self.now_s else 0
        return len(self._states) + len(self._inbox) + finished_later

    def run_until(self, until_s: float) -> None:
        """Run the steps that begin before `until_s`."""
        while (self._states or self._inbox) and self.now_s < until_s:
            if not self._window or self._has_arrival():
                self._commit_window()
                self._receive()
                self._window = self._find_window()
            if self._window:
                self._run_window(until_s)
            else:
                self._step()

    def _has_arrival(self) -> bool:
        return bool(self._inbox) and self._inbox[0].arrival_s <= self.now_s

    def _receive(self) -> None:
        while self._has_arrival():
            request = self._inbox.popleft()
            scheduled = self._llm.TokenSequence(
                str(request.number),
                [0] * request.num_prompt_tokens,
                arrival_s=request.arrival_s,
                priority_class=request.priority_class,
            )
            self._scheduler.add(scheduled)
            self._states[scheduled.request_id] = SimRequestState(
                request, scheduled, num_left=request.num_output_tokens
            )

    def _step(self) -> None:
        plan: StepPlan = self._scheduler.schedule(self._budget())
        for request_id in plan.preempted:
            is_batch = self._states[request_id].request.priority_class == "batch"
            self.stats.num_batch_preemptions += is_batch
            self.stats.num_preemptions += not is_batch
        attention = kv_read = 0
        sampled = {}
        for request_id, num_new in plan.num_scheduled_tokens.items():
            scheduled = self._states[request_id].scheduled
            num_computed = scheduled.num_computed_tokens
            attention += attention_tokens(num_computed, num_new)
            kv_read += num_computed + num_new
            if scheduled.needs_sample(num_new):
                sampled[request_id] = _TOKEN
        num_tokens = plan.total_num_scheduled_tokens
        if num_tokens == 0 and not plan.preempted:
            raise RuntimeError("the scheduler planned a step of no tokens although requests wait")
        ends = self._advance([(num_tokens, attention, kv_read)], math.inf)
        self._scheduler.commit(plan, sampled)
        self._emit(list(sampled), ends)

    def _budget(self) -> int | None:
        if self._controller is None:
            return None
        budget: int | None = self._controller.token_budget(
            self.now_s, self._scheduler, lambda request_id: self._states[request_id].last_s
        )
        return budget

    def _advance(self, steps: Iterable[tuple[int, int, int]], until_s: float) -> list[float]:
        """Run the first step, and all that begin before `until_s`: when each ends.

        A step is its num_tokens, attention_tokens and kv_tokens_read.
        """
        config, stats = self.config, self.stats
        ends: list[float] = []
        for num_tokens, attention, kv_read in steps:
            if ends and self.now_s >= until_s:
                break
            seconds = config.cost.seconds(num_tokens, attention, kv_read)
            if config.noise:
                seconds *= self._rng.lognormvariate(0, config.noise)
            if self._controller is not None:
                self._controller.policy.model.record(num_tokens, attention, kv_read, seconds)
            self.now_s += seconds
            stats.busy_s += seconds
            stats.num_tokens += num_tokens
            ends.append(self.now_s)
        stats.num_steps += len(ends)
        return ends

    def _emit(self, request_ids: Sequence[str], ends: Sequence[float]) -> None:
        """Each request gets a token at each of `ends`, the ends of consecutive steps."""
        gaps = [after - before for before, after in pairwise(ends)]
        num_late = sum(gap > self._itl_slo_s for gap in gaps)
        num_interactive = self._num_finished_last = 0
        for request_id in request_ids:
            state = self._states[request_id]
            is_interactive = state.request.priority_class == "interactive"
            num_interactive += is_interactive
            if state.first_s is None:
                state.first_s = ends[0]
            else:
                gap = ends[0] - state.last_s
                state.num_late_gaps += gap > self._itl_slo_s
                if is_interactive:
                    self.stats.gaps[gap] += 1
            state.num_late_gaps += num_late
            state.last_s = ends[-1]
            state.num_left -= len(ends)
            if state.num_left == 0:
                self._finish(request_id, state.first_s)
        for gap in gaps if num_interactive else ():
            self.stats.gaps[gap] += num_interactive

    def _finish(self, request_id: str, first_s: float) -> None:
        self._scheduler.finish(request_id)
        state = self._states.pop(request_id)
        request = state.request
        self._num_finished_last += 1
        self.stats.finished.append(
            FinishedRequest(
                request.number,
                request.arrival_s,
                first_s,
                state.last_s,
                request.num_prompt_tokens,
                request.num_output_tokens,
                state.num_late_gaps,
                request.priority_class,
            )
        )

    # Fast forward

    def _find_window(self) -> range:
        """The stored tokens of each of the next steps in which every running request just gets a token.

        The window ends with the first answer that ends; no waiting request can be admitted in it, and no
        block runs short. Empty unless it has two steps.
        """
        config, running = self.config, self._scheduler.running
        if not config.fast_forward or not running or config.scheduler.chunk_grid:
            return range(0)
        if len(self._states) > len(running) and not self._blocks_admission(running):
            return range(0)
        count = config.scheduler.max_num_batched_tokens // len(running)
        for request in running:
            if request.num_computed_tokens != request.num_tokens - 1 or not request.output_token_ids:
                return range(0)
            count = min(count, self._states[request.request_id].num_left)
        missing = sum(
            -(-(request.num_computed_tokens + count) // config.block_size) - len(request.block_ids)
            for request in running
        )
        if count < 2 or missing > self._pool.num_free:
            return range(0)
        width, kv_read = len(running), sum(request.num_computed_tokens + 1 for request in running)
        return range(kv_read, kv_read + width * count, width)

    def _blocks_admission(self, running: Sequence[TokenSequence]) -> bool:
        """Whether no waiting request can be admitted before one of `running` ends."""
        config = self.config.scheduler
        # A policy other than fcfs may count the steps that a request waits.
        if config.policy != "fcfs" or len(running) < config.max_num_seqs:
            return False
        return running[-1].rank <= self._scheduler.waiting[0].rank

    def _run_window(self, until_s: float) -> None:
        """Go on to the step that contains `until_s` or the next arrival."""
        until_s = min(until_s, self._inbox[0].arrival_s) if self._inbox else until_s
        width = len(self._scheduler.running)
        ends = self._advance(((width, kv_read, kv_read) for kv_read in self._window), until_s)
        self._window_ends += ends
        self._num_finished_last = 0
        self._window = self._window[len(ends) :]
        if not self._window:
            self._commit_window()

    def _commit_window(self) -> None:
        if not self._window_ends:
            return
        ends, self._window_ends = self._window_ends, []
        running = self._scheduler.running
        for request in running:
            request.spec_token_ids = [0] * (len(ends) - 1)
        plan = self._scheduler.schedule()
        planned = plan.num_scheduled_tokens
        if len(planned) != len(running) or any(count != len(ends) for count in planned.values()):
            raise RuntimeError("the scheduler planned other tokens than one per step: try --step-by-step")
        self._scheduler.commit(plan, dict.fromkeys(planned, _TOKEN * len(ends)))
        self._emit(list(planned), ends)
