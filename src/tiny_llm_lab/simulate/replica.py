"""One engine without a model: the solution's scheduler, step after step, under a virtual clock."""

import math
import random
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

from tiny_llm_lab.types import StepPlan

from .ledger import Ledger, Served
from .machine import Machine
from .traffic import SimRequest

_TOKEN = (0,)  # what is sampled: the simulation has no tokens, only their number


class Live:
    """A request on its way: the scheduler's half, and what becomes of it."""

    __slots__ = ("asked", "first_s", "last_s", "num_late", "num_left", "request")

    def __init__(self, asked: SimRequest, request: Any) -> None:
        self.asked = asked
        self.request = request
        self.num_left = asked.num_output_tokens
        self.first_s = self.last_s = math.nan
        self.num_late = 0


class Replica:
    """Runs whatever is submitted. `now_s` is the end of its last step, or the arrival that woke it."""

    def __init__(self, machine: Machine, itl_slo_s: float, pacer: Any = None) -> None:
        """`pacer`, a BudgetController, chooses every step's budget; None: the scheduler's own limit always."""
        self.machine = machine
        self.now_s = 0.0
        self.ledger = Ledger(itl_slo_s)
        pool = machine.llm.BlockPool(machine.num_blocks, machine.block_size)
        self._pool = pool
        self._scheduler = machine.llm.Scheduler(machine.config, pool)
        self._pacer = pacer
        self._inbox: deque[SimRequest] = deque()
        self._live: dict[str, Live] = {}
        self._rng = random.Random(machine.seed)
        self._ended_last = 0
        # Ends of steps in which everybody decoded: the scheduler is told of them when such steps end.
        self._stretch: list[float] = []
        self._ahead = range(0)  # the stored tokens of the steps that may follow them

    def submit(self, request: SimRequest) -> None:
        """Takes requests in order of their arrival; each is seen at the first step from then on."""
        if not self._live and not self._inbox:
            self.now_s = max(self.now_s, request.arrival_s)
        self._inbox.append(request)

    def load(self, now_s: float) -> int:
        """Requests that had not ended at `now_s`, which may be during the last step."""
        return len(self._live) + len(self._inbox) + (self._ended_last if now_s < self.now_s else 0)

    def run_until(self, until_s: float) -> None:
        """Run the steps that begin before `until_s`."""
        while (self._live or self._inbox) and self.now_s < until_s:
            if not self._ahead or self._someone_came():
                self._end_stretch()
                self._receive()
                self._ahead = self._same_steps()
            if self._ahead:
                self._lengthen_stretch(until_s)
            else:
                self._step()

    def _someone_came(self) -> bool:
        return bool(self._inbox) and self._inbox[0].arrival_s <= self.now_s

    def _receive(self) -> None:
        while self._someone_came():
            asked = self._inbox.popleft()
            request = self.machine.llm.TokenSequence(
                str(asked.number),
                [0] * asked.num_prompt_tokens,
                arrival_s=asked.arrival_s,
                is_batch_class=asked.is_batch_class,
            )
            self._scheduler.add(request)
            self._live[request.request_id] = Live(asked, request)

    def _step(self) -> None:
        budget = None
        if self._pacer is not None:
            budget = self._pacer.token_budget(
                self.now_s, self._scheduler, lambda name: self._live[name].last_s
            )
        plan: StepPlan = self._scheduler.schedule(budget)
        for request_id in plan.preempted:
            if self._live[request_id].asked.is_batch_class:
                self.ledger.num_batch_preemptions += 1
            else:
                self.ledger.num_preemptions += 1
        num_attended = num_stored = 0
        sampled = {}
        for request_id, num_new in plan.num_scheduled_tokens.items():
            request = self._live[request_id].request
            num_computed = request.num_computed_tokens
            num_attended += self.machine.llm.context_work(num_computed, num_new)
            num_stored += num_computed + num_new
            if request.needs_sample(num_new):
                sampled[request_id] = _TOKEN
        num_tokens = plan.total_num_scheduled_tokens
        if num_tokens == 0 and not plan.preempted:
            raise RuntimeError("the scheduler planned a step of no tokens although requests wait")
        times = self._pass([(num_tokens, num_attended, num_stored)], math.inf)
        self._scheduler.commit(plan, sampled)
        self._deliver(list(sampled), times)

    def _pass(self, steps: Iterable[tuple[int, int, int]], until_s: float) -> list[float]:
        """The ends of the steps (tokens, attended, stored) that begin before `until_s`, and of the first."""
        machine, ledger = self.machine, self.ledger
        now_s, busy_s, total = self.now_s, ledger.busy_s, 0
        ends: list[float] = []
        for num_tokens, num_attended, num_stored in steps:
            if ends and now_s >= until_s:
                break
            seconds = machine.cost.seconds(num_tokens, num_attended, num_stored)
            if machine.noise:
                seconds *= self._rng.lognormvariate(0, machine.noise)
            if self._pacer is not None:
                self._pacer.policy.model.record(num_tokens, num_attended, num_stored, seconds)
            now_s += seconds
            busy_s += seconds
            total += num_tokens
            ends.append(now_s)
        ledger.num_steps += len(ends)
        ledger.num_tokens += total
        self.now_s, ledger.busy_s = now_s, busy_s
        return ends

    def _deliver(self, request_ids: list[str], times: list[float]) -> None:
        """Each of the requests got a token at each of the times, the ends of consecutive steps."""
        ledger, slo_s, end_s = self.ledger, self.ledger.itl_slo_s, times[-1]
        gaps = [after - before for before, after in pairwise(times)]
        num_late = sum(gap > slo_s for gap in gaps)
        first_gaps: dict[float, int] = {}
        num_watched = 0
        self._ended_last = 0
        for request_id in request_ids:
            live = self._live[request_id]
            if live.first_s != live.first_s:  # not a number yet
                live.first_s = times[0]
            else:
                gap = times[0] - live.last_s
                live.num_late += gap > slo_s
                if not live.asked.is_batch_class:
                    first_gaps[gap] = first_gaps.get(gap, 0) + 1
            num_watched += not live.asked.is_batch_class
            live.num_late += num_late
            live.last_s = end_s
            live.num_left -= len(times)
            if live.num_left == 0:
                self._end(request_id)
        for gap, count in first_gaps.items():
            ledger.gaps[gap] += count
        if num_watched:
            for gap in gaps:
                ledger.gaps[gap] += num_watched

    def _end(self, request_id: str) -> None:
        self._scheduler.finish(request_id)
        live = self._live.pop(request_id)
        self._ended_last += 1
        asked = live.asked
        self.ledger.served.append(
            Served(
                asked.number,
                asked.arrival_s,
                live.first_s,
                live.last_s,
                asked.num_prompt_tokens,
                asked.num_output_tokens,
                live.num_late,
                asked.is_batch_class,
            )
        )

    # Fast forward: a stretch of steps that all hold one token of each running request. The scheduler is
    # shown the whole stretch as one step in which everybody guessed right; the clock goes step by step.

    def _same_steps(self) -> range:
        """The stored tokens of the next steps in which nothing happens but one token for everyone who runs.

        Up to the first answer that ends, as long as no waiting request could come in, by a free place or by
        that of a batch-class one, and no block is short. Empty unless there are two.
        """
        machine, running = self.machine, self._scheduler.running
        config = machine.config
        if not machine.fast_forward or not running or config.chunk_grid:
            return range(0)
        if len(self._live) > len(running) and not self._is_closed(running):
            return range(0)
        count = config.max_num_batched_tokens // len(running)
        for request in running:
            if request.num_computed_tokens != request.num_tokens - 1 or not request.output_token_ids:
                return range(0)
            count = min(count, self._live[request.request_id].num_left)
        size = machine.block_size
        missing = sum(
            -(-(each.num_computed_tokens + count) // size) - len(each.block_ids) for each in running
        )
        if count < 2 or missing > self._pool.num_free:
            return range(0)
        width, num_stored = len(running), sum(request.num_computed_tokens + 1 for request in running)
        return range(num_stored, num_stored + width * count, width)

    def _is_closed(self, running: Sequence[Any]) -> bool:
        """Whether nobody who waits could come in before one of `running` has left."""
        config = self.machine.config
        # A policy other than fcfs may count the steps that someone waits.
        if config.policy != "fcfs" or len(running) < config.max_num_seqs:
            return False
        return not running[-1].is_batch_class or self._scheduler.waiting[0].is_batch_class

    def _lengthen_stretch(self, until_s: float) -> None:
        """Up to the step in which `until_s` lies, or someone arrives."""
        until_s = min(until_s, self._inbox[0].arrival_s) if self._inbox else until_s
        width = len(self._scheduler.running)
        times = self._pass(((width, num_stored, num_stored) for num_stored in self._ahead), until_s)
        self._stretch += times
        self._ended_last = 0
        self._ahead = self._ahead[len(times) :]
        if not self._ahead:
            self._end_stretch()

    def _end_stretch(self) -> None:
        if not self._stretch:
            return
        count, running, times = len(self._stretch), self._scheduler.running, self._stretch
        self._stretch = []
        for request in running:
            request.spec_token_ids = [0] * (count - 1)
        plan = self._scheduler.schedule()
        if any(count != planned for planned in plan.num_scheduled_tokens.values()) or len(
            plan.num_scheduled_tokens
        ) != len(running):
            raise RuntimeError("the scheduler planned other tokens than one per step: try --step-by-step")
        self._scheduler.commit(plan, dict.fromkeys(plan.num_scheduled_tokens, _TOKEN * count))
        self._deliver(list(plan.num_scheduled_tokens), times)
