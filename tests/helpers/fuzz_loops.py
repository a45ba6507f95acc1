"""The loops under test, each with settings of its own: what becomes of several requests."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.helpers.fuzz_answers import REFUSED, Log, Outcome, outcome_of
from tests.helpers.fuzz_models import FuzzTokenizer, Watched

from tiny_llm_lab.types import DoneEvent, Event, Prompt, StepPlan, StepStats, UserError

_STEPS = 3000


class Crash(Exception):
    """Raised on purpose."""


class TickingClock:
    """Time passes when it is asked for, so that requests arrive in every step of a run."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        self.now_s += 1e-5
        return self.now_s


@dataclass
class Counts:
    """What a fuzz has reached."""

    answers: int = 0
    aborted: int = 0
    crashed: int = 0
    preempted: int = 0
    drafted: int = 0
    accepted: int = 0
    cached_tokens: int = 0
    near_ties: int = 0


@dataclass
class Served:
    """What became of the requests of a run, by their ids."""

    logs: dict[str, Log] = field(default_factory=dict)
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    aborted: set[str] = field(default_factory=set)
    added: dict[str, Prompt] = field(default_factory=dict)  # while the run went on
    is_crashed: bool = False


class RandomChunks:
    """A chunk policy of whims, which also pauses."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def select_chunk_size(self, base_chunk_size: int, decode_pressure: float) -> int:
        assert 0 <= decode_pressure <= 1
        return self._rng.choice((0, 1, 2, base_chunk_size, 3 * base_chunk_size))

    def record_chunk(self, chunk_size: int, chunk_time: float) -> None:
        assert chunk_size > 0 and chunk_time >= 0


def serve_batch(llm: Any, model: Any, prompts: Sequence[Prompt], limit: int, rng: random.Random) -> Served:
    """By `batch_generate`."""
    policies = {
        "none": None,
        "whims": RandomChunks(random.Random(rng.random())),
        "adaptive": llm.AdaptiveChunker(rng.choice((1e-9, 0.05)), rng.randrange(3)),
    }
    served = Served()

    def note(event: Event) -> None:
        served.logs.setdefault(str(_prompt_idx(event)), Log()).events.append(event)

    done = llm.batch_generate(
        model,
        FuzzTokenizer(),
        prompts,
        max_seq_len=limit,
        batch_size=rng.choice((1, 2, 3, 5, 9)),
        prefill_step=rng.choice((None, 1, 3, 8, 31, 128)),
        prefill_memory=rng.choice((None, 100_000)),
        chunk_policy=policies[rng.choice(tuple(policies))],
        metrics=llm.ChunkedPrefillMetrics(),
        on_event=note,
        clock=TickingClock(),
    )
    assert [each.prompt_idx for each in done] == list(range(len(prompts))), "one completion for each prompt"
    served.outcomes = {str(each.prompt_idx): outcome_of(each) for each in done}
    return served


def serve_speculative(
    llm: Any, model: Any, prompts: Sequence[Prompt], limit: int, rng: random.Random, proposer: Watched
) -> Served:
    """By `speculative_generate`, one after the other."""
    served = Served()
    for i, prompt in enumerate(prompts):
        named = _Named(str(i), proposer)
        try:
            events = llm.speculative_generate(
                model,
                FuzzTokenizer(),
                prompt.content,
                named,
                prompt.sampling,
                prefill_step=rng.choice((1, 5, 128)),
                max_seq_len=limit,
            )
            served.logs[str(i)] = Log(list(events))
        except UserError:
            served.outcomes[str(i)] = REFUSED
    assert not proposer.live, f"{proposer.live} ended and their drafts are remembered"
    return served


class _Named:
    """A proposer for one request, under a name that the test knows."""

    def __init__(self, name: str, proposer: Watched) -> None:
        self._name, self._proposer = name, proposer

    def propose(self, token_ids: Sequence[int], request_id: str | None = None, sampler: Any = None) -> Any:
        return self._proposer.propose(token_ids, self._name, sampler)

    def forget(self, request_id: str) -> None:
        self._proposer.forget(self._name)


class EngineUnderTest:
    """One engine, which serves one run of requests after the other."""

    def __init__(
        self, llm: Any, model: Any, counts: Counts, proposer: Watched | None, **settings: Any
    ) -> None:
        self.counts, self.proposer = counts, proposer
        self.num_steps, self.crash_at = 0, -1
        self.budget: int = settings["config"].max_num_batched_tokens
        self.engine = llm.Engine(
            model,
            FuzzTokenizer(),
            settings.pop("config"),
            **settings,
            proposer=proposer,
            on_step=self._on_step,
            clock=TickingClock(),
        )

    def generate(self, prompts: Sequence[Prompt], spare: Sequence[Prompt], rng: random.Random) -> Served:
        """By `Engine.generate`, with aborts and additions inside of `on_event`."""
        served, spares = Served(), list(spare)

        def on_event(event: Event) -> None:
            served.logs.setdefault(_name(_prompt_idx(event)), Log()).events.append(event)
            if rng.random() < 0.03:
                name = rng.choice([*served.added, *(str(i) for i in range(len(prompts)))])
                if self.engine.abort(name):
                    served.aborted.add(name)
            if spares and rng.random() < 0.1:
                number = len(served.added)
                prompt = served.added[f"x{number}"] = spares.pop()
                self._add(served, f"x{number}", prompt, prompt_idx=_ADDED + number)

        done = self.engine.generate(prompts, on_event)
        assert [each.prompt_idx for each in done] == list(range(len(prompts))), "one completion a prompt"
        served.outcomes |= {str(each.prompt_idx): outcome_of(each) for each in done}
        return served

    def step(self, prompts: Sequence[Prompt], rng: random.Random) -> Served:
        """By `Engine.step`, with arrivals and aborts between steps."""
        served, end = Served(), rng.choice((1, 5, 20))
        arrivals = {str(i): rng.randrange(end) for i in range(len(prompts))}
        aborts = {str(i): rng.randrange(30) for i in range(len(prompts)) if rng.random() < 0.15}
        step = 0
        while arrivals or self.engine.has_requests:
            for name in [name for name, at in arrivals.items() if at <= step]:
                del arrivals[name]
                served.logs[name] = Log()
                self._add(served, name, prompts[int(name)])
            for name in [name for name, at in aborts.items() if at == step]:
                if self.engine.abort(name):
                    served.aborted.add(name)
            for output in self.engine.step():
                assert output.request_id not in served.aborted, "an aborted request got a token"
                asked = prompts[int(output.request_id)].sampling.logprobs is not None
                assert len(output.logprobs) == (len(output.token_ids) if asked else 0)
                served.logs[output.request_id].events += output.events
                if output.completion is not None:
                    served.outcomes[output.request_id] = outcome_of(output.completion)
            step += 1
            assert step < _STEPS, "the engine does not come to an end"
        return served

    def check_end(self) -> None:
        """Whatever happened, nothing is left of it."""
        engine = self.engine
        assert not engine.has_requests, "requests are left"
        pool = engine.scheduler.pool
        assert pool.num_free == pool.num_blocks, f"{pool.num_free} of {pool.num_blocks} blocks are back"
        engine.scheduler.check()
        if engine.prefix_cache is not None:
            assert not engine.prefix_cache.claims, "claims on blocks are left"
            self.counts.cached_tokens += engine.prefix_cache.num_hit_tokens
        if self.proposer is not None:
            assert not self.proposer.live, f"{self.proposer.live} ended and their drafts are remembered"

    def _add(self, served: Served, name: str, prompt: Prompt, **settings: Any) -> None:
        try:
            self.engine.add(
                name,
                prompt.content,
                prompt.sampling,
                priority=prompt.priority,
                priority_class=prompt.priority_class,
                **settings,
            )
        except UserError:
            served.logs.pop(name, None)
            served.outcomes[name] = REFUSED

    def _on_step(self, plan: StepPlan, stats: StepStats) -> None:
        self.num_steps += 1
        self.counts.preempted += len(plan.preempted)
        assert self.num_steps % _STEPS, "the engine does not come to an end"
        assert plan.total_num_scheduled_tokens <= self.budget, "a step beyond its budget"
        self.engine.scheduler.check()
        if self.num_steps == self.crash_at:
            raise Crash


_ADDED = 1000  # prompt_idx of the first request that was added inside of a callback


def _prompt_idx(event: Event) -> int:
    return event.completion.prompt_idx if isinstance(event, DoneEvent) else event.prompt_idx


def _name(prompt_idx: int) -> str:
    return str(prompt_idx) if prompt_idx < _ADDED else f"x{prompt_idx - _ADDED}"


def outcomes_of(served: Served, names: Mapping[str, Prompt]) -> dict[str, Outcome | str]:
    """What became of each request, or what is wrong with what was said about it."""
    found: dict[str, Outcome | str] = {}
    for name in names:
        log = served.logs.get(name)
        found[name] = served.outcomes.get(name, "it was never heard of") if log is None else log.outcome()
        if log is not None and name in served.outcomes and found[name] != served.outcomes[name]:
            found[name] = f"its events say {found[name]}, its completion {served.outcomes[name]}"
    return found
