"""Random requests for the scheduler in a pool that is too small: python tests/helpers/soak.py --seed 1"""

import argparse
import random
import sys
import time
from dataclasses import dataclass, field
from typing import Any

from tiny_llm_lab.runtime.solution import load_solution
from tiny_llm_lab.types import Policy, SchedulerConfig

POLICIES: tuple[Policy, ...] = ("fcfs", "fair", "priority")


@dataclass
class Life:
    """What one request wants and what it got."""

    request: Any
    max_tokens: int
    added: int  # the step before which it came
    admitted: int | None = None
    ends: int = 0
    bound: int | None = None  # steps that it may wait to be admitted
    scheduled: int = 0  # tokens that were planned for it
    adopted: int = 0  # tokens that others computed for it
    lost: int = 0  # tokens computed in vain: of draft tokens that were rejected, and before preemptions
    at: int = 0  # tokens computed after the last step


@dataclass
class Storm:
    """One run: every rule is checked after every step."""

    llm: Any
    config: SchedulerConfig
    num_blocks: int
    block_size: int
    is_cached: bool
    rng: random.Random
    batch_share: float
    arrival_rate: float
    lives: dict[str, Life] = field(default_factory=dict)
    num_steps: int = 0
    num_preemptions: int = 0
    num_displaced: int = 0  # preempted in steps that admit others
    longest_wait: int = 0

    def __post_init__(self) -> None:
        pool = self.llm.BlockPool(self.num_blocks, self.block_size)
        cache = self.llm.PrefixCache(pool) if self.is_cached else None
        self.scheduler = self.llm.Scheduler(self.config, pool, cache)

    def run(self, num_requests: int) -> None:
        """Let `num_requests` come and go. Raises AssertionError as soon as a rule is broken."""
        num_idle = 0
        while len(self.lives) < num_requests or any(not life.ends for life in self._open()):
            if len(self.lives) < num_requests and self.rng.random() < self.arrival_rate:
                for _ in range(min(self.rng.choice((1, 1, 2, 6)), num_requests - len(self.lives))):
                    self._add()
            if self.rng.random() < 0.03 and (names := list(self._open_names())):
                self._end(self.rng.choice(names), is_abort=True)
            has_work = bool(self._open_names())
            num_scheduled = self._step()
            num_idle = 0 if num_scheduled or not has_work else num_idle + 1
            assert num_idle < 2, f"step {self.num_steps}: two steps in a row compute nothing"
        assert self.scheduler.pool.num_free == self.num_blocks, "blocks are missing at the end"
        assert all(life.ends == 1 for life in self.lives.values()), "every request ends exactly once"
        if self.is_cached:
            assert not self.scheduler.prefix_cache.reservations, "reservations without a request"

    def _open(self) -> list[Life]:
        return [self.lives[name] for name in self._open_names()]

    def _open_names(self) -> list[str]:
        return [r.request_id for r in (*self.scheduler.running, *self.scheduler.waiting)]

    def _add(self) -> None:
        rng, name = self.rng, f"r{len(self.lives)}"
        longest = self.scheduler.max_num_tokens
        num_prompt = rng.choice((1, rng.randrange(1, 12), rng.randrange(1, longest * 2 // 3)))
        # Few different tokens, in long runs: many prompts begin alike.
        family = rng.randrange(3)
        cut = rng.randrange(num_prompt + 1)
        prompt = [family] * cut + [rng.randrange(5) for _ in range(num_prompt - cut)]
        kind = "batch" if rng.random() < self.batch_share else "interactive"
        request = self.llm.TokenSequence(name, prompt, rng.randrange(3), float(self.num_steps), kind)
        max_tokens = min(rng.randrange(1, 30), longest + 1 - num_prompt)
        self.lives[name] = Life(request, max_tokens, self.num_steps, bound=self._bound(request))
        self.scheduler.add(request)

    def _bound(self, request: Any) -> int | None:
        """The first in order gets a token in every step, or every second one when prefills and decodes
        alternate, so it is done after as many as it has tokens: only policy priority lets others pass.
        Batch-class requests delay no interactive one beyond that second step, and may wait forever."""
        if self.config.policy == "priority" or request.priority_class == "batch":
            return None
        ahead = [life for life in self._open() if life.request.priority_class == "interactive"]
        num_tokens = sum(len(life.request.prompt_token_ids) + life.max_tokens + 1 for life in ahead)
        return num_tokens if self.config.step_mode == "mixed" else 2 * num_tokens + 1

    def _smaller_budget(self) -> int | None:
        """Sometimes less than the step may have, but enough for all who run."""
        is_free = self.config.enable_chunked_prefill and not self.config.chunk_grid
        least = self.config.max_num_seqs
        return self.rng.randrange(least, 2 * least) if is_free and self.rng.random() < 0.3 else None

    def _step(self) -> int:
        self._draft()
        budget = self._smaller_budget()
        before = {r.request_id: (r.num_computed_tokens, r.num_preemptions) for r in self.scheduler.running}
        plan = self.scheduler.schedule(budget)
        limit = min(self.config.max_num_batched_tokens, budget or self.config.max_num_batched_tokens)
        assert plan.total_num_scheduled_tokens <= limit, f"step {self.num_steps}: more than {limit} tokens"
        assert min(plan.num_scheduled_tokens.values(), default=1) > 0, "planned with no tokens"
        running = [r.request_id for r in self.scheduler.running]
        assert len(running) <= self.config.max_num_seqs, f"step {self.num_steps}: more run than have slots"
        assert set(plan.num_scheduled_tokens) <= set(running), "a sequence gets tokens without being admitted"
        if plan.preempted:
            admitted = set(running) - set(before)
            batch_class = {name for name, life in self.lives.items() if life.request.rank == 1}
            assert not admitted & batch_class, "batch class is not admitted in a step that preempts"
            assert not admitted or set(plan.preempted) <= batch_class, "only batch class makes room"
            self.num_displaced += len(plan.preempted) if admitted else 0
            assert not set(plan.preempted) & set(plan.num_scheduled_tokens), "preempted and admitted"
            self.num_preemptions += len(plan.preempted)
        for name in plan.preempted:
            self.lives[name].lost += self.lives[name].at
            self.lives[name].at = 0
        self._note_admissions(running)
        if self.rng.random() < 0.03 and plan.num_scheduled_tokens:
            self._end(self.rng.choice(list(plan.num_scheduled_tokens)), is_abort=True)
        self._commit(plan)
        self.num_steps += 1
        self.scheduler.check()
        return plan.total_num_scheduled_tokens

    def _note_admissions(self, running: list[str]) -> None:
        for name in running:
            life = self.lives[name]
            if life.admitted is None:
                life.admitted = self.num_steps
                waited = self.num_steps - life.added
                self.longest_wait = max(self.longest_wait, waited)
                assert life.bound is None or waited <= life.bound, f"{name} waited {waited} steps"

    def _draft(self) -> None:
        for request in self.scheduler.running:
            if request.is_decoding and self.rng.random() < 0.3:
                request.spec_token_ids = [self.rng.randrange(3) for _ in range(self.rng.randrange(1, 5))]

    def _commit(self, plan: Any) -> None:
        sampled, spans = {}, {}
        for name, num_new in plan.num_scheduled_tokens.items():
            life = self.lives[name]
            request = life.request
            life.scheduled += num_new
            life.adopted += request.num_computed_tokens - life.at
            spans[name] = (request.num_computed_tokens, num_new)
            room = len(request.block_ids) * self.block_size
            assert room >= request.num_computed_tokens + num_new or life.ends, f"{name} has too few blocks"
            if request.needs_sample(num_new):
                num_drafted = request.num_computed_tokens + num_new - request.num_tokens
                accepted = request.spec_token_ids[: self.rng.randrange(num_drafted + 1)]
                room = life.max_tokens - len(request.output_token_ids)
                sampled[name] = [*accepted, self.rng.randrange(3)][:room]
        self.scheduler.commit(plan, sampled)
        for name, (start, num_new) in spans.items():
            life = self.lives[name]
            if life.ends:
                continue
            want = life.request.num_tokens - 1 if name in sampled else start + num_new
            assert life.request.num_computed_tokens == want, f"{name}: computed tokens after commit"
            life.lost, life.at = life.lost + start + num_new - want, want
            if len(life.request.output_token_ids) == life.max_tokens:
                self._end(name)

    def _end(self, name: str, is_abort: bool = False) -> None:
        life = self.lives[name]
        if is_abort:
            assert self.scheduler.abort(name)
        else:
            assert life.scheduled + life.adopted - life.lost == life.request.num_tokens - 1, "tokens computed"
            is_whole = life.adopted % self.block_size == 0 and (self.is_cached or life.adopted == 0)
            assert is_whole, f"{name}: {life.adopted} tokens found in the prefix cache"
            self.scheduler.finish(name)
        life.ends += 1
        assert life.request.block_ids == [], f"{name} has ended and has blocks"


def random_config(rng: random.Random, policy: Policy | None = None, has_grid: bool = True) -> SchedulerConfig:
    """Any combination of settings that is allowed; `policy` None means any of them."""
    budget = rng.choice((8, 17, 64))
    is_chunked = rng.random() < 0.8
    grid = rng.choice((0, 0, 4)) if is_chunked else 0
    return SchedulerConfig(
        max_num_batched_tokens=budget if is_chunked else 64,
        max_num_seqs=rng.choice((1, 3, 5)),
        max_model_len=64,
        long_prefill_token_threshold=rng.choice((0, 4, 9)),
        enable_chunked_prefill=is_chunked,
        policy=policy or rng.choice(POLICIES),
        step_mode=rng.choice(("mixed", "mixed", "alternate")),
        chunk_grid=grid if has_grid else 0,
    )


def storm(
    llm: Any,
    seed: int,
    num_requests: int,
    policy: Policy | None = None,
    batch_share: float = 0.0,
    has_grid: bool = True,
) -> Storm:
    """A storm with random settings, run to its end; `batch_share` of the requests are of batch class."""
    rng = random.Random(seed)
    config = random_config(rng, policy, has_grid)
    block_size = rng.choice((1, 4, 16))
    num_blocks = -(-rng.choice((24, 64, 100)) // block_size)
    is_cached, rate = rng.random() < 0.7, rng.choice((0.05, 0.4))
    run = Storm(llm, config, num_blocks, block_size, is_cached, rng, batch_share, rate)
    run.run(num_requests)
    return run


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0, help="of the first storm; each has 500 requests")
    parser.add_argument("--batch-share", type=float, default=0.3, help="of the requests (default: 0.3)")
    parser.add_argument("--solution", default="ref")
    args = parser.parse_args(argv)
    llm = load_solution(args.solution)
    start_s = time.perf_counter()
    for i, done in enumerate(range(0, args.requests, 500)):
        run = storm(llm, args.seed + i, min(500, args.requests - done), batch_share=args.batch_share)
        print(
            f"seed {args.seed + i}: {len(run.lives)} requests, {run.num_steps} steps, {run.num_preemptions} "
            f"preemptions, {run.num_displaced} to admit others, longest wait {run.longest_wait} steps, "
            f"{run.config.policy}",
            file=sys.stderr,
        )
    print(f"{args.requests} requests, no rule broken, {time.perf_counter() - start_s:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
