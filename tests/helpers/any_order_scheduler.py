"""A scheduler under any order of calls: what must hold after each, whatever it chose, and that all ends."""

from collections.abc import Sequence
from itertools import takewhile
from typing import Any

from hypothesis import assume
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.helpers.any_order import result_of

from tiny_llm_lab.types import SchedulerConfig, StepPlan, UserError

SIZE, LIMIT = 2, 14
PROMPTS = st.lists(st.integers(1, 2), min_size=1, max_size=7)


class AnySchedule(RuleBasedStateMachine):
    """Sequences of two tokens, so that many share prefixes; the tokens of every block are written down."""

    POLICIES: tuple[str, ...] = ("fcfs",)
    CLASSES: tuple[str, ...] = ("interactive",)
    GRIDS: tuple[int, ...] = (0,)
    MOST_DRAFTED = 0

    def __init__(self, llm: Any) -> None:
        super().__init__()
        self.llm = llm
        self.live: dict[str, Any] = {}
        self.wanted: dict[str, int] = {}
        self.num_added = 0
        self.places: dict[str, int] = {}
        self.begun: set[str] = set()  # prompts of which a part is computed
        self.written: dict[tuple[int, int], tuple[int, ...]] = {}  # the tokens up to one, by its place

    @initialize(data=st.data())
    def begin(self, data: Any) -> None:
        draw = data.draw
        budget = draw(st.sampled_from((4, 3, 8, 20)))
        try:
            self.config = SchedulerConfig(
                budget,
                draw(st.integers(1, 4)),
                LIMIT,
                draw(st.sampled_from((0, 0, 1, 4))),
                policy=draw(st.sampled_from(self.POLICIES)),
                step_mode=draw(st.sampled_from(("mixed", "mixed", "alternate"))),
                chunk_grid=draw(st.sampled_from(self.GRIDS)),
                max_num_partial_prefills=draw(st.sampled_from((0, 0, 1))),
                enable_chunked_prefill=draw(st.sampled_from((True, True, False))),
            )
            self.pool = self.llm.BlockPool(draw(st.sampled_from((7, 3, 5, 10, 16))), SIZE)
            self.cache = self.llm.PrefixCache(self.pool) if draw(st.sampled_from((True, False))) else None
            self.scheduler = self.llm.Scheduler(self.config, self.pool, self.cache)
        except UserError:
            assume(False)

    @rule(
        prompt=PROMPTS, max_tokens=st.sampled_from((1, 3, 8, 12)), priority=st.integers(0, 2), data=st.data()
    )
    def add(self, prompt: list[int], max_tokens: int, priority: int, data: Any) -> None:
        name = f"r{self.num_added}"
        sequence = self.llm.TokenSequence(
            name, prompt, priority, 0.0, data.draw(st.sampled_from(self.CLASSES))
        )
        fits = len(prompt) <= self.scheduler.max_num_tokens
        assert result_of(lambda: self.scheduler.add(sequence), UserError) is (None if fits else UserError)
        if fits:
            self.live[name], self.wanted[name] = sequence, max_tokens
            self.places[name] = self.num_added
            assert result_of(lambda: self.scheduler.add(sequence), UserError) is UserError, "its id is in use"
        self.num_added += 1

    @precondition(lambda self: len(self.live) < 6)
    @rule(prompts=st.lists(PROMPTS, min_size=2, max_size=4), data=st.data())
    def crowd(self, prompts: list[list[int]], data: Any) -> None:
        """Several that want long answers: blocks run out."""
        for prompt in prompts:
            self.add(prompt, 12, 1, data)
        self.steps(6)

    @precondition(lambda self: self.live)
    @rule(number=st.integers(0, 5))
    def abort(self, number: int) -> None:
        name = list(self.live)[number % len(self.live)]
        assert self.scheduler.abort(name) and not self.scheduler.abort(name)
        assert self.live.pop(name).block_ids == []

    @rule(count=st.integers(1, 8))
    def steps(self, count: int) -> None:
        for _ in range(count):
            self.step(None, 1, 1, "")

    @rule()
    def end_those_that_preempted(self) -> None:
        """What the victims had computed is then still cached."""
        for _ in range(12):
            self.step(None, 0, 0, "")
            if self.plan.preempted:
                for each in self.scheduler.running:
                    self.scheduler.abort(each.request_id)
                    del self.live[each.request_id]
                self.step(None, 0, 0, "")
                return

    @rule(
        budget=st.sampled_from((None, None, 1, 3)),
        accepted=st.integers(0, 2),
        drafted=st.integers(0, 2),
        between=st.sampled_from(("", "", "", "abort", "replace")),
    )
    def step(self, budget: int | None, accepted: int, drafted: int, between: str) -> None:
        """One step; while it is computed its first request may end, or another one take its id."""
        scheduler = self.scheduler
        for each in scheduler.running:
            if each.is_decoding:
                each.spec_token_ids = [1] * min(drafted, self.MOST_DRAFTED)
        before = {each.request_id: self._found(each) for each in scheduler.waiting}
        was_decoding = {name for name, each in self.live.items() if each.is_decoding}
        computed = {name: each.num_computed_tokens for name, each in self.live.items()}
        was_running = {each.request_id for each in scheduler.running}
        plan = scheduler.schedule() if budget is None else scheduler.schedule(budget)
        self.plan = plan
        assert plan.total_num_scheduled_tokens <= min(budget or LIMIT * 9, self.config.max_num_batched_tokens)
        assert len(scheduler.running) <= max(self.config.max_num_seqs, len(was_running))
        for each in self.live.values():
            if each.request_id in plan.preempted:
                self.begun.discard(each.request_id)
                assert not each.num_computed_tokens and not each.spec_token_ids, "a victim begins again"
        assert plan.preempted or was_running <= {each.request_id for each in scheduler.running}
        self._check_shares(plan, was_decoding)
        # A sequence that was given cached blocks in this step may be a decode by now.
        names = [n for n in plan.num_scheduled_tokens if self.live[n].num_computed_tokens == computed[n]]
        assert self.config.step_mode == "mixed" or len({name in was_decoding for name in names}) < 2
        for each in scheduler.running:
            if each.request_id in before:
                self._check_hits(each, before[each.request_id])
        self._compute(plan, accepted, between)

    @invariant()
    def agree(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        self.scheduler.check()
        for part in (self.scheduler.waiting, self.scheduler.running):
            assert list(part) == sorted(part, key=self._place), f"{self.config.policy} has another order"
        both = [*self.scheduler.waiting, *self.scheduler.running]
        assert {each.request_id for each in both} == set(self.live) and len(both) == len(self.live)
        assert not any(each.block_ids or each.num_computed_tokens for each in self.scheduler.waiting)

    def teardown(self) -> None:
        """What is left comes to its end, and leaves nothing."""
        if not hasattr(self, "scheduler"):
            return
        for _ in range(400):
            if not self.live:
                break
            plan = self.scheduler.schedule()
            assert plan.num_scheduled_tokens, f"no tokens for {list(self.live)}"
            self._compute(plan, 2)
        assert not self.live, "requests that never end"
        assert self.pool.num_free == self.pool.num_blocks
        assert self.cache is None or not self.cache.reservations

    def _place(self, each: Any) -> tuple[int, ...]:
        number = self.places[each.request_id]
        return (each.rank, each.priority if self.config.policy == "priority" else 0, number)

    def _found(self, each: Any) -> list[int]:
        if self.cache is None:
            return []
        return [pair[1] for pair in takewhile(bool, map(self.cache.find, self.cache.keys(each.token_ids)))]

    def _check_hits(self, each: Any, before: Sequence[int]) -> None:
        """An admitted sequence shares what was and still is cached of all its tokens, answer included."""
        pairs = zip(before, self._found(each), strict=False)
        want = [first for first, _ in takewhile(lambda pair: pair[0] == pair[1], pairs)]
        assert each.block_ids[: len(want)] == want, f"{each.request_id} computes cached blocks again"

    def _check_shares(self, plan: StepPlan, was_decoding: set[str]) -> None:
        config = self.config
        for name, num_new in plan.num_scheduled_tokens.items():
            each = self.live[name]
            end = each.num_computed_tokens + num_new
            assert num_new >= 1 and end <= min(each.num_tokens_with_spec, self.scheduler.max_num_tokens)
            assert len(each.block_ids) * SIZE >= end, f"{name} has no block for its tokens"
            if not self.MOST_DRAFTED:
                assert len(each.block_ids) == -(-end // SIZE), f"{name} holds blocks that it does not need"
            if end < each.num_tokens:
                assert config.enable_chunked_prefill or name in self.begun, f"a part of {name}, in no chunks"
                self.begun.add(name)
                assert end % max(1, config.chunk_grid) == 0, f"a chunk of {name} ends off the grid"
            most = config.long_prefill_token_threshold if config.enable_chunked_prefill else 0
            assert not most or name in was_decoding or num_new <= most, f"{name} got more than the threshold"
        served = [self.live[name].rank for name in plan.num_scheduled_tokens]
        assert served == sorted(served), "more urgent classes first"

    def _compute(self, plan: StepPlan, accepted: int, between: str = "") -> None:
        sampled, size = {}, SIZE
        for name, num_new in plan.num_scheduled_tokens.items():
            each = self.live[name]
            tokens = [*each.token_ids, *each.spec_token_ids]
            for t in range(each.num_computed_tokens):
                place = each.block_ids[t // size], t % size
                assert self.written[place] == tuple(tokens[: t + 1]), f"{name}: token {t} was overwritten"
            for t in range(each.num_computed_tokens, each.num_computed_tokens + num_new):
                assert self.pool.ref_count(each.block_ids[t // size]) == 1, "a shared block is written"
                self.written[each.block_ids[t // size], t % size] = tuple(tokens[: t + 1])
            if each.needs_sample(num_new):
                drafted = each.num_computed_tokens + num_new - each.num_tokens
                sampled[name] = [*each.spec_token_ids[: min(accepted, drafted)], 1 + sum(tokens) % 2]
        for name in list(plan.num_scheduled_tokens)[: 1 if between else 0]:
            self.scheduler.abort(name)
            self.begun.discard(name)
            old = self.live.pop(name)
            sampled.pop(name, None)
            if between == "replace":
                new = self.live[name] = self.llm.TokenSequence(name, old.prompt_token_ids)
                self.scheduler.add(new)
                self.places[name] = self.num_added
                self.num_added += 1
        self.scheduler.commit(plan, sampled)
        for name in sampled:
            each = self.live[name]
            assert each.num_computed_tokens == each.num_tokens - 1 and not each.spec_token_ids
            is_full = each.num_computed_tokens >= self.scheduler.max_num_tokens
            if len(each.output_token_ids) >= self.wanted[name] or is_full:
                self.scheduler.finish(name)
                del self.live[name]
