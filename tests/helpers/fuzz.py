"""A differential fuzz: random requests in company, in every loop, against each request alone.

Run it for long: python -m tests.helpers.fuzz --runs 3000 --seed 1
"""

import argparse
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from types import ModuleType
from typing import Any, cast

from tests.helpers.devices import on_cpu
from tests.helpers.fuzz_answers import (
    REFUSED,
    Outcome,
    answered_alone,
    answered_by_engine,
    difference,
    is_near_tie,
)
from tests.helpers.fuzz_cases import BLOCK_SIZES, describe, draw_caching, draw_config, draw_prompts, with_stop
from tests.helpers.fuzz_engine import Counts, CrashError, EngineUnderTest
from tests.helpers.fuzz_loops import Served, outcomes_of, serve_batch, serve_speculative
from tests.helpers.fuzz_models import INVARIANT, MAX_POSITIONS, MODELS, Models, ScriptedProposer, Watched
from tests.helpers.pictures import with_pictures

from tiny_llm_lab.runtime import native
from tiny_llm_lab.runtime.solution import load_solution
from tiny_llm_lab.runtime.task_names import TaskNames
from tiny_llm_lab.types import Prompt

_LOOPS = ("engine", "batch", "engine", "engine", "batch", "engine", "speculative")
_DRAFT_MODELS = ("same model", "other model")
_PROPOSERS = ("ngram", "ngram", *_DRAFT_MODELS, "small model", "scripted", "scripted")
_HYBRIDS_PROPOSERS = ("mtp", "same model", "ngram", "mtp", "other model", "mtp", "scripted")


class DifferenceError(AssertionError):
    """One line: the seed, the settings, and what differs."""


class Fuzz:
    """Runs by their seeds; counts what they reach."""

    def __init__(self, llm: Any, only: str = "") -> None:
        """`only`: the one model whose runs these are."""
        self.llm, self.only = llm, only
        self.drawn = [each for each in MODELS if only in ("", each[0])]
        self.models = Models(llm)
        self.counts = Counts()
        with on_cpu("cpp"):
            self.has_kernels = native.can_run()

    def run(self, seed: int) -> None:
        """One run. Raises DifferenceError."""
        run = _Run(self, seed)
        with on_cpu(run.kernels):
            self.counts.on_kernels += run.model.ops.name != "off"
            try:
                run.go()
            except Exception as error:
                what = str(error) if isinstance(error, AssertionError) else f"{type(error).__name__}: {error}"
                line = " ".join(f"{run.settings}: {what}".split())
                only = f" --only {self.only}" if self.only else ""
                again = f"python -m tests.helpers.fuzz --seed {seed} --runs 1{only}"
                raise DifferenceError(f"{again}: {line}") from error


class _Run:
    def __init__(self, fuzz: Fuzz, seed: int) -> None:
        self.llm, self.models, self.counts = fuzz.llm, fuzz.models, fuzz.counts
        self.seed, self.rng = seed, random.Random(seed)
        # In turns: few runs reach all of them, and their combinations differ from round to round.
        turn, place = divmod(seed, len(_LOOPS))
        self.loop = _LOOPS[place]
        self.number = turn * _LOOPS.count(self.loop) + _LOOPS[:place].count(self.loop)
        self.model_name, self.kernels = fuzz.drawn[self.number % len(fuzz.drawn)]
        if self.kernels == "cpp" and not fuzz.has_kernels:
            self.model_name, self.kernels = "qwen2", "off"
        self.model = self.models.of(self.model_name, self.kernels)
        if self.loop == "speculative" and self.model.config.hybrid:
            self.loop = "engine"  # the loop refuses hybrids
        self.is_exact = self.kernels == "cpp" and self.model_name in INVARIANT
        # The 512 tokens that a draft model computes in a pass are far more than other runs have.
        self.is_long = seed % 20 == 7
        self.limit = MAX_POSITIONS if self.is_long else self.rng.choice((12, 24, 40, 64, 100))
        self.kv_bits: int | None = None
        self.block_size = 16
        self.settings = f"{self.loop}, {self.model_name}, kernels {self.kernels}"

    def go(self) -> None:
        if self.loop == "engine":
            self._engine()
            return
        prompts, want = self._prompts(self.rng.choice((1, 5, 8, 10)), self.rng.choice((1, 8, 16)))
        if self.loop == "batch":
            served = serve_batch(self.llm, self.model, prompts, self.limit, self.rng)
        else:
            proposer = self._proposer(prompts, want)
            served = serve_speculative(self.llm, self.model, prompts, self.limit, self.rng, proposer)
        self._compare(served, prompts, want)

    def _engine(self) -> None:
        rng = self.rng
        self.block_size = rng.choice(BLOCK_SIZES)
        config = draw_config(rng, self.limit)
        num_tokens = self.limit * rng.choice((0.8, 1, 1, 1.3, 1.3, 2, 20))
        num_blocks = max(1, round(num_tokens / self.block_size))
        self.limit = min(self.limit, num_blocks * self.block_size)
        self.kv_bits = 8 if self.is_exact and rng.random() < 0.25 else None
        settings = {"num_blocks": num_blocks, "block_size": self.block_size, "kv_bits": self.kv_bits}
        settings |= draw_caching(rng, self.block_size, bool(self.model.config.hybrid))
        proposer = self._proposer((), ()) if self.is_long or self.number % 13 < len(_PROPOSERS) else None
        self.settings += f", {settings}, {describe(config)}"
        model = self.model
        if proposer is not None and self.proposer_kind == "mtp":
            model = self.models.with_draft_layer(self.model_name, self.kernels)
        if proposer is not None and self.number % 3 == 0:
            settings |= {"draft_gate": self.llm.DraftGate()}
        seeing = self.models.seeing(self.model, model, rng.choice((0, 5000, 10**6)))
        engine = EngineUnderTest(self.llm, model, self.counts, proposer, seeing, config=config, **settings)
        num_changed = self.counts.changed
        for _ in range(rng.choice((1, 1, 2))):
            self._serve(engine)
        is_plain = self.counts.changed == num_changed  # drafts know nothing of penalties
        if (stats := engine.engine.core.spec_stats) is not None:
            self.counts.drafted += stats.num_draft_tokens
            self.counts.accepted += stats.num_accepted_tokens
            if is_plain and self.is_exact and self.kv_bits is None and self.proposer_kind == "same model":
                assert stats.num_accepted_tokens == stats.num_draft_tokens, "the model rejects its own drafts"

    def _serve(self, engine: EngineUnderTest) -> None:
        rng = self.rng
        prompts, want = self._prompts(rng.choice((1, 4, 6, 8, 10, 12)), self.block_size)
        spare, want_spare = self._prompts(2, self.block_size)
        _tell(engine.proposer, (*prompts, *spare), (*want, *want_spare), len(prompts))
        engine.crash_at = engine.num_steps + rng.randint(1, 15) if rng.random() < 0.25 else -1
        try:
            if rng.random() < 0.5:
                prompts = [replace(each, arrival_s=rng.random() * rng.choice((0, 1e-3))) for each in prompts]
                served = engine.generate(prompts, spare[::-1], rng)
            else:
                served = engine.step(prompts, rng)
        except CrashError:
            self.counts.crashed += 1
        else:
            self._compare(served, (*prompts, *served.added.values()), (*want, *want_spare))
        engine.check_end()

    def _prompts(self, count: int, period: int) -> tuple[list[Prompt], list[Outcome]]:
        """Prompts, and what each gets alone."""
        changed = 0.3 if self.loop == "engine" else 0
        prompts = draw_prompts(self.rng, count, self.limit, period, self.is_long, changed)
        if self.loop == "engine" and self.model.config.pictures:
            prompts = [self._with_pictures(prompt) for prompt in prompts]
        want = [self._alone(prompt) for prompt in prompts]
        for i, prompt in enumerate(prompts):
            if self.rng.random() < 0.3 and want[i] != REFUSED:
                prompts[i] = with_stop(self.rng, prompt, want[i].text)
                want[i] = self._alone(prompts[i])
        return prompts, want

    def _alone(self, prompt: Prompt) -> Outcome:
        needs_engine = bool(prompt.processors or prompt.pictures.num_pictures)
        needs_engine |= prompt.sampling.changes_logits
        self.counts.changed += needs_engine
        if self.kv_bits is None and not needs_engine and prompt.sampling.prompt_logprobs is None:
            return answered_alone(self.llm, self.model, prompt, self.limit, self.rng)
        size, seeing = self.block_size, self.models.seeing(self.model, None)
        return answered_by_engine(self.llm, self.model, prompt, self.limit, size, self.kv_bits, seeing)

    def _with_pictures(self, prompt: Prompt) -> Prompt:
        is_plain = self.rng.random() < 0.3 or not 0 < len(prompt.content) < self.limit
        return prompt if is_plain else with_pictures(self.rng, prompt, self.limit)

    def _proposer(self, prompts: Sequence[Prompt], want: Sequence[Outcome]) -> Watched:
        rng, kinds = self.rng, _DRAFT_MODELS if self.is_long else _PROPOSERS
        if self.model_name in ("hybrid", "hybrid moe", "seeing hybrid"):
            kinds = _HYBRIDS_PROPOSERS
        self.proposer_kind = kind = kinds[self.number % 13 % len(kinds)]
        self.settings += f", {kind} drafts"
        if kind == "scripted":
            right, silent = rng.choice((0.0, 0.6, 0.9, 1.0)), rng.choice((0, 0.4))
            proposer = Watched(
                ScriptedProposer(self.seed, right, rng.randint(1, 8), silent, outside=0.2), False
            )
            _tell(proposer, prompts, want, len(prompts))
            return proposer
        is_exact = kind == "ngram" or (kind != "mtp" and self.is_exact and self.kv_bits is None)
        return Watched(self.models.proposer(kind, self.model_name, self.kernels, rng), is_exact)

    def _compare(self, served: Served, prompts: Sequence[Prompt], want: Sequence[Outcome]) -> None:
        names = {_id(i, len(prompts) - len(served.added)): prompt for i, prompt in enumerate(prompts)}
        found = outcomes_of(served, names)
        for (name, prompt), wanted in zip(names.items(), want, strict=False):
            got = found[name]
            self.counts.answers += 1
            if name in served.aborted:
                self.counts.aborted += 1
                if name not in served.outcomes and not name.startswith("x"):
                    continue  # between steps: nothing is said about it any more
            what = got if isinstance(got, str) else difference(got, wanted, prompt, name in served.aborted)
            if what is None:
                continue
            if not self.is_exact and isinstance(got, Outcome) and self._is_near_tie(prompt, got, wanted):
                self.counts.near_ties += 1
                continue
            raise AssertionError(f"request {name} of {len(prompts)}, {prompt}: {what}")

    def _is_near_tie(self, prompt: Prompt, got: Outcome, want: Outcome) -> bool:
        return REFUSED not in (got, want) and is_near_tie(self.llm, self.model, prompt, got, want)


def _id(i: int, num_prompts: int) -> str:
    return str(i) if i < num_prompts else f"x{i - num_prompts}"


def _tell(proposer: Watched | None, prompts: Sequence[Prompt], want: Sequence[Outcome], num: int) -> None:
    """Let a scripted proposer know the answers."""
    if proposer is not None and isinstance(proposer.proposer, ScriptedProposer):
        texts = ([*prompt.content, *each.token_ids] for prompt, each in zip(prompts, want, strict=True))
        proposer.proposer.texts = {_id(i, num): text for i, text in enumerate(texts)}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0, help="of the first run")
    parser.add_argument("--solution", default="ref")
    parser.add_argument("--only", default="", choices=dict(MODELS), metavar="MODEL", help="bytes, moe, ...")
    parser.add_argument(
        "--keep-going", action="store_true", help="report every difference, not only the first"
    )
    args = parser.parse_args(argv)
    fuzz = Fuzz(TaskNames(cast(ModuleType, load_solution(args.solution))), args.only)
    start_s, num_different = time.perf_counter(), 0
    for seed in range(args.seed, args.seed + args.runs):
        try:
            fuzz.run(seed)
        except DifferenceError as difference:
            print(difference)
            num_different += 1
            if not args.keep_going:
                break
    counts = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in asdict(fuzz.counts).items())
    print(f"{num_different} of {args.runs} runs differ; {counts}; {time.perf_counter() - start_s:.1f} s")
    return 1 if num_different else 0


if __name__ == "__main__":
    sys.exit(main())
