"""Day 4.4: slots and snapshots under random requests, against lists of the tokens that a state has seen."""

import random
from dataclasses import dataclass, field
from typing import Any

import pytest

from tiny_llm_lab.types import SchedulerConfig, StepPlan
from tiny_llm_lab.types.computing.paged import NOT_RUNNING

pytestmark = pytest.mark.task("4.4.4")
SIZE, LIMIT = 4, 90


@dataclass
class Seen:
    """What the arrays of a cache would be: for each number the tokens of its states."""

    states: dict[int, list[int]] = field(default_factory=dict)

    def step(self, plan: Any, sequences: dict[str, Any]) -> None:
        planned = [(sequences[name], num_new) for name, num_new in plan.num_scheduled_tokens.items()]
        for each, _ in planned:
            if each.states.snapshot >= 0:
                self.states[each.states.slot] = self.states[each.states.snapshot]
        for each, num_new in planned:
            before, use = each.num_computed_tokens, each.states
            tokens = each.tokens_between(0, before + num_new)
            seen = self.states[use.slot] if before else []
            assert seen == tokens[:before], f"{each.request_id} goes on from a state of other tokens"
            for num_tokens, number in use.kept:
                assert before < num_tokens <= before + num_new and num_tokens % SIZE == 0
                self.states[number] = tokens[:num_tokens]
            self.states[use.slot] = tokens
        kept = [number for each, _ in planned for _, number in each.states.kept]
        made = [*kept, *(each.states.slot for each in sequences.values() if each.states != NOT_RUNNING)]
        assert len(set(made)) == len(made), "two states with one number"
        assert not {each.states.snapshot for each, _ in planned} & set(made), "it is read in this step"

    def commit(self, sequence: Any) -> None:
        if sequence.states.num_drafted:
            self.states[sequence.states.slot] = sequence.tokens_between(0, sequence.num_computed_tokens)


class Run:
    """A scheduler with states, requests that come and go, and answers out of a hat."""

    def __init__(self, llm: Any, seed: int, capacity: int | None = None) -> None:
        self.llm = llm
        self.rng = rng = random.Random(seed)
        self.capacity = rng.choice((1, 2, 3, 9, 40)) if capacity is None else capacity
        self.snapshots = llm.StateSnapshots(self.capacity, SIZE * rng.choice((1, 2, 3, 50)))
        self.pool = llm.BlockPool(rng.choice((24, 40, 200)), SIZE)
        self.cache = llm.PrefixCache(self.pool, snapshots=self.snapshots)
        config = SchedulerConfig(
            max_num_batched_tokens=rng.choice((5, 9, 30, 200)),
            max_num_seqs=rng.choice((1, 3, 5)),
            max_model_len=LIMIT,
            policy=rng.choice(("fcfs", "fair", "priority")),
        )
        states = llm.SequenceStates(self.snapshots)
        self.scheduler = llm.Scheduler(config, self.pool, self.cache, states)
        self.sequences: dict[str, Any] = {}
        self.seen, self.texts, self.num_added, self.num_cached = Seen(), [[]], 0, 0
        self.most_running = 0

    def add(self) -> None:
        rng = self.rng
        start = rng.choice(self.texts[-5:])
        text = [
            *start[: rng.choice((len(start), rng.randint(0, len(start))))],
            *(rng.randrange(9) for _ in range(rng.randint(1, 25))),
        ]
        text = text[: LIMIT - 20]
        sequence = self.llm.TokenSequence(str(self.num_added), text, rng.randrange(3))
        sequence.priority_class = rng.choice(("interactive", "interactive", "batch"))
        self.num_added += 1
        self.texts.append(text)
        self.scheduler.add(sequence)
        self.sequences[sequence.request_id] = sequence

    def step(self) -> None:
        rng = self.rng
        for each in self.scheduler.running:
            if each.is_decoding and rng.random() < 0.4:
                each.spec_token_ids = [rng.randrange(3) for _ in range(rng.randint(1, 6))]
        plan = self.scheduler.schedule()
        self.seen.step(plan, self.sequences)
        self.check_room(plan)
        if rng.random() < 0.1 and self.sequences:  # while the step is computed
            self.end(rng.choice(list(self.sequences)))
        sampled = {}
        for name, num_new in plan.num_scheduled_tokens.items():
            if (each := self.sequences.get(name)) and each.needs_sample(num_new):
                drafted = each.num_computed_tokens + num_new - each.num_tokens
                accepted = each.spec_token_ids[: rng.randint(0, drafted)]
                sampled[name] = [*accepted, rng.randrange(3)]
        self.scheduler.commit(plan, sampled)
        for name in plan.num_scheduled_tokens:
            if each := self.sequences.get(name):
                self.seen.commit(each)
                if each.num_tokens > LIMIT - 8 or rng.random() < 0.02:
                    self.texts.append(each.token_ids)
                    self.num_cached += each.num_cached_tokens
                    self.end(name)
        self.scheduler.check()
        running = self.scheduler.running
        assert all(each.states.slot in range(self.capacity) for each in running)
        assert len(self.snapshots) + len(running) <= self.capacity
        self.most_running = max(self.most_running, len(running))

    def check_room(self, plan: StepPlan) -> None:
        """A step makes its snapshots, and keeps the state from before a draft, in states that are free."""
        states = [self.sequences[name].states for name in plan.num_scheduled_tokens]
        num_new = sum(len(each.kept) + (each.num_drafted > 0) for each in states)
        assert len(self.snapshots) + len(self.scheduler.running) + num_new <= self.capacity

    def end(self, name: str) -> None:
        self.scheduler.abort(name)
        assert self.sequences.pop(name).states == NOT_RUNNING

    def go(self) -> None:
        for _ in range(240):
            if self.rng.random() < 0.15:
                self.add()
            if self.sequences:
                self.step()
        for text in self.texts:
            for key in self.cache.keys(text):
                assert self.cache.find(key) or not self.snapshots.has(key), "its block was evicted"
        for name in list(self.sequences):
            self.end(name)
        assert self.pool.num_free == self.pool.num_blocks
        # Nothing is held, so that all numbers are free or can be replaced.
        taken = [self.snapshots.take() for _ in range(self.capacity)]
        assert sorted(taken) == list(range(self.capacity))
        assert self.snapshots.take() == -1 and not len(self.snapshots)


@pytest.mark.parametrize("seed", range(60))
def test_a_state_has_seen_exactly_the_tokens_before_a_step(llm: Any, seed: int) -> None:
    Run(llm, seed).go()


def test_the_runs_above_go_on_from_snapshots(llm: Any) -> None:
    runs = [Run(llm, seed, 40) for seed in range(10)]
    for run in runs:
        run.go()
    assert sum(run.num_cached for run in runs) > 500
    assert sum(run.snapshots.num_used for run in runs) > 20
    assert sum(run.snapshots.num_evicted for run in runs) > 20


@pytest.mark.parametrize("capacity", [1, 2, 3])
def test_as_many_requests_run_as_have_states(llm: Any, capacity: int) -> None:
    """Three places, and blocks for all."""
    runs = [Run(llm, seed, capacity) for seed in range(30)]
    for run in runs:
        run.go()
    assert max(run.most_running for run in runs) == capacity


def test_of_a_long_answer_its_newest_snapshot_stays_and_those_every_so_many_tokens(llm: Any) -> None:
    """Blocks of 4 and a snapshot every 8 tokens: after 31 tokens those at 8, 16 and 24 stay, and at 28."""
    cache = llm.PrefixCache(llm.BlockPool(40, SIZE), snapshots=llm.StateSnapshots(40, 8))
    config = SchedulerConfig(max_num_batched_tokens=16, max_num_seqs=2, max_model_len=LIMIT)
    scheduler = llm.Scheduler(config, cache.pool, cache, llm.SequenceStates(cache.snapshots))
    sequence = llm.TokenSequence("a", [1, 2, 3, 4, 5])
    scheduler.add(sequence)
    while sequence.num_tokens < 31:
        scheduler.commit(scheduler.schedule(), {"a": [sequence.num_tokens]})
    tokens = sequence.token_ids
    ends = {SIZE * len(llm.PrefixMatch(cache, tokens[: n + 1]).match()) for n in range(SIZE, 31)}
    assert ends == {4, 8, 16, 24, 28}, "4 is the end of the prompt's last full block"
    match, states = llm.PrefixMatch(cache, tokens[:29]), llm.SequenceStates(cache.snapshots)
    assert states.num_needed(match, 7) == 2, "a slot, and the snapshot that it goes on from"
    cache.snapshots.hold(match.found_key(7))
    assert states.num_needed(match, 7) == 1, "which is none of the free ones if somebody holds it"
