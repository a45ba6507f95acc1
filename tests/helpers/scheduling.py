"""A scheduler at work without a model: requests come at given steps, and what is sampled is made up."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tiny_llm_lab.types import PriorityClass, SchedulerConfig, StepPlan

POLICIES = ("fcfs", "fair", "priority")
PLAIN = SchedulerConfig(max_num_batched_tokens=2048, max_num_seqs=64, max_model_len=4096)


@dataclass
class Job:
    """A request of `prompt` (a length, or its tokens) that arrives before schedule call `step` and wants
    `max_tokens` tokens; `request` is the solution's own object once it has arrived."""

    request_id: str
    prompt: int | Sequence[int]
    max_tokens: int
    step: int = 0
    priority: int = 0
    priority_class: PriorityClass = "interactive"
    request: Any = None
    first_token_step: int | None = None
    done_step: int | None = None

    @property
    def prompt_token_ids(self) -> list[int]:
        if isinstance(self.prompt, int):
            # Prompts of different requests share no prefix unless a test asks for it.
            first = random.Random(self.request_id).randrange(10**6, 10**9)
            return list(range(first, first + self.prompt))
        return list(self.prompt)


@dataclass
class Run:
    """What happened: one plan a step, and the starts of the chunks of every request."""

    jobs: dict[str, Job]
    plans: list[StepPlan] = field(default_factory=list)
    chunk_starts: dict[str, list[int]] = field(default_factory=dict)

    def tokens(self) -> list[dict[str, int]]:
        """Tokens of each step by request id."""
        return [dict(plan.num_scheduled_tokens) for plan in self.plans]

    def chunks(self, request_id: str) -> list[int]:
        """What one request got, in the steps in which it got something."""
        return [step[request_id] for step in self.tokens() if request_id in step]

    def costs(self, victim: str) -> list[int]:
        """All tokens of each step in which `victim` had a decode."""
        steps = [plan for plan in self.plans if victim in plan.num_scheduled_tokens]
        return [plan.total_num_scheduled_tokens for plan in steps][1:]

    def ttft(self, request_id: str) -> int:
        """Steps from arrival up to the one that sampled the first token."""
        job = self.jobs[request_id]
        assert job.first_token_step is not None
        return job.first_token_step - job.step + 1

    def num_computed(self) -> int:
        """Tokens computed in all steps."""
        return sum(plan.total_num_scheduled_tokens for plan in self.plans)


def made_up_token(request: Any) -> int:
    """The same token for the same tokens before it."""
    return hash((len(request.prompt_token_ids), *request.output_token_ids)) % 1000


def config(**changes: Any) -> SchedulerConfig:
    return replace(PLAIN, **changes)


def request_of(llm: Any, num_prompt: int = 5, **fields: Any) -> Any:
    return llm.TokenSequence("r", list(range(100, 100 + num_prompt)), **fields)


def scheduler_of(llm: Any, config: SchedulerConfig, num_blocks: int, block_size: int, cached: bool) -> Any:
    pool = llm.BlockPool(num_blocks, block_size)
    return llm.Scheduler(config, pool, llm.PrefixCache(pool, "toy") if cached else None)


def drive(
    llm: Any,
    config: SchedulerConfig,
    jobs: Sequence[Job],
    *,
    num_blocks: int | None = None,
    block_size: int = 16,
    cached: bool = False,
    token_budget: int | None = None,
    before_step: Callable[[int, Any], None] = lambda step, scheduler: None,
    max_steps: int = 100_000,
) -> Run:
    """Run all jobs to their end; `before_step` is called with the step's number and the scheduler.

    `num_blocks` None means blocks enough for all of them at once.
    """
    if num_blocks is None:
        num_blocks = sum(-(-(len(job.prompt_token_ids) + job.max_tokens) // block_size) for job in jobs)
    scheduler = scheduler_of(llm, config, num_blocks, block_size, cached)
    run = Run({job.request_id: job for job in jobs})
    coming = sorted(jobs, key=lambda job: job.step)  # stable: in the order given
    while any(job.done_step is None for job in jobs):
        step = len(run.plans)
        assert step < max_steps, f"not done after {max_steps} steps"
        while coming and coming[0].step <= step:
            job = coming.pop(0)
            job.request = llm.TokenSequence(
                job.request_id, job.prompt_token_ids, job.priority, float(step), job.priority_class
            )
            scheduler.add(job.request)
        before_step(step, scheduler)
        plan = scheduler.schedule(token_budget) if token_budget else scheduler.schedule()
        run.plans.append(plan)
        waiting = {each.request_id for each in scheduler.waiting} & set(plan.num_scheduled_tokens)
        assert not waiting, f"step {step} has tokens for {sorted(waiting)}, which still wait: not admitted"
        _forward(scheduler, plan, run, step)
    assert scheduler.pool.num_free == num_blocks, "blocks are missing at the end"
    return run


def _forward(scheduler: Any, plan: StepPlan, run: Run, step: int) -> None:
    sampled = {}
    for request_id, num_new in plan.num_scheduled_tokens.items():
        request = run.jobs[request_id].request
        run.chunk_starts.setdefault(request_id, []).append(request.num_computed_tokens)
        if request.num_computed_tokens + num_new == request.num_tokens:
            sampled[request_id] = [made_up_token(request)]
    scheduler.commit(plan, sampled)
    for request_id in sampled:
        job = run.jobs[request_id]
        job.first_token_step = step if job.first_token_step is None else job.first_token_step
        if len(job.request.output_token_ids) == job.max_tokens:
            job.done_step = step
            scheduler.finish(request_id)
    scheduler.check()
