"""The engine under a fuzz: runs of requests with arrivals, aborts, additions and crashes."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tests.helpers.fuzz_answers import REFUSED, Log, outcome_of
from tests.helpers.fuzz_cases import draw_config
from tests.helpers.fuzz_loops import ADDED, Served, TickingClock, name_of, prompt_idx_of
from tests.helpers.fuzz_models import FuzzTokenizer, Watched
from tests.helpers.pictures import SeeingEngine

from tiny_llm_lab.types import EngineOptions, EngineOutput, Event, Prompt, StepPlan, StepStats, UserError

_STEPS = 3000


class CrashError(Exception):
    """Raised on purpose."""


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
    changed: int = 0
    scored_prompts: int = 0
    reconfigured: int = 0
    near_ties: int = 0
    on_kernels: int = 0
    pictures: int = 0  # that a tower has read


class EngineUnderTest:
    """One engine, which serves one run of requests after the other."""

    def __init__(
        self,
        llm: Any,
        model: Any,
        counts: Counts,
        proposer: Watched | None,
        seeing: SeeingEngine | None = None,
        **settings: Any,
    ) -> None:
        self.counts, self.proposer = counts, proposer
        self.num_steps, self.crash_at = 0, -1
        self.restless = 0.0  # how often other settings are taken, before a step
        self._scored: set[str] = set()
        self.budget: int = settings["config"].max_num_batched_tokens
        self.seeing, make = seeing, EngineOptions if seeing is None else seeing.options
        config = settings.pop("config")
        options = make(**settings, proposer=proposer, on_step=self._on_step, clock=TickingClock())
        self.engine = llm.Engine(model, FuzzTokenizer(), config, options)
        if seeing is not None:
            seeing.queue.watch(self.engine)

    def generate(self, prompts: Sequence[Prompt], spare: Sequence[Prompt], rng: random.Random) -> Served:
        """By `Engine.generate`, with aborts and additions inside of `on_event`."""
        served, spares = Served(), list(spare)
        prompts = [self.seeing.prompt(each) for each in prompts] if self.seeing else prompts

        def on_event(event: Event) -> None:
            served.logs.setdefault(name_of(prompt_idx_of(event)), Log()).events.append(event)
            if rng.random() < 0.04:
                name = rng.choice([*served.added, *(str(i) for i in range(len(prompts)))])
                if self.engine.abort(name):
                    served.aborted.add(name)
            if spares and rng.random() < 0.1:
                number = len(served.added)
                prompt = served.added[f"x{number}"] = spares.pop()
                self._add(served, f"x{number}", prompt, prompt_idx=ADDED + number)

        done = self.engine.generate(prompts, on_event)
        assert [each.prompt_idx for each in done] == list(range(len(prompts))), "one completion a prompt"
        served.outcomes |= {str(each.prompt_idx): outcome_of(each) for each in done}
        return served

    def step(self, prompts: Sequence[Prompt], rng: random.Random) -> Served:
        """By `Engine.step`, with arrivals and aborts between steps."""
        served, end = Served(), rng.choice((1, 5, 20))
        self.restless = rng.choice((0, 0, 0.3))
        self._scored = set()
        arrivals = {str(i): rng.randrange(end) for i in range(len(prompts))}
        step = 0
        while arrivals or self.engine.has_requests:
            for name in [name for name, at in arrivals.items() if at <= step]:
                del arrivals[name]
                served.logs[name] = Log()
                self._add(served, name, prompts[int(name)])
            live = [each for each in served.logs if each not in {*served.outcomes, *served.aborted}]
            if live and rng.random() < 0.12:
                name = rng.choice((rng.choice(live), live[-1]))  # the last one may be in prefill
                served.aborted.add(name)
                assert self.engine.abort(name), f"request {name} is not there"
            if rng.random() < self.restless:
                self._reconfigure(rng)
            for output in self.engine.step():
                assert output.request_id not in served.aborted, "an aborted request got a token"
                asked = prompts[int(output.request_id)].sampling.logprobs is not None
                assert len(output.logprobs) == (len(output.token_ids) if asked else 0)
                self._check_prompt_logprobs(output, prompts[int(output.request_id)])
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
        pool = engine.core.scheduler.pool
        assert pool.num_free == pool.num_blocks, f"{pool.num_free} of {pool.num_blocks} blocks are back"
        engine.core.scheduler.check()
        if engine.core.prefix_cache is not None:
            assert not engine.core.prefix_cache.reservations, "reservations are left"
            self.counts.cached_tokens += engine.core.prefix_cache.num_hit_tokens
        if self.seeing is not None:
            assert not self.seeing.queue.num_held, "requests are held"
            self.counts.pictures += self.seeing.store.counts.num_pictures
            self.seeing.store.counts.num_pictures = 0
        if self.proposer is not None:
            assert not self.proposer.live, f"{self.proposer.live} ended and their drafts are remembered"

    def _reconfigure(self, rng: random.Random) -> None:
        config = self.engine.core.config
        drawn = draw_config(rng, config.max_model_len)
        self.engine.core.reconfigure(replace(drawn, policy=config.policy))
        # A step that was launched ahead keeps the budget that it was planned with.
        self.budget = max(self.budget, drawn.max_num_batched_tokens)
        self.counts.reconfigured += 1

    def _check_prompt_logprobs(self, output: EngineOutput, prompt: Prompt) -> None:
        is_first = output.request_id not in self._scored
        self._scored.add(output.request_id)
        num_asked = len(prompt.content) if prompt.sampling.prompt_logprobs is not None and is_first else 0
        assert len(output.prompt_logprobs) == num_asked, "logprobs of a prompt come once, and all of them"
        self.counts.scored_prompts += num_asked > 0

    def _add(self, served: Served, name: str, prompt: Prompt, **settings: Any) -> None:
        if self.seeing is not None:
            prompt = self.seeing.prompt(prompt)
        try:
            self.engine.add(
                name,
                prompt.content,
                prompt.sampling,
                processors=prompt.processors,
                priority=prompt.priority,
                priority_class=prompt.priority_class,
                pictures=prompt.pictures,
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
        self.engine.core.scheduler.check()
        for each in self.engine.core.scheduler.waiting:
            assert not each.block_ids and not each.num_computed_tokens, "a request that waits holds blocks"
            assert not each.spec_token_ids, "a request that waits keeps a draft"
        if self.num_steps == self.crash_at:
            raise CrashError
