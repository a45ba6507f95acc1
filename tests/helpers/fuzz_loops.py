"""The loops under test, each with settings of its own: what becomes of several requests."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.helpers.fuzz_answers import REFUSED, Log, Outcome, outcome_of
from tests.helpers.fuzz_models import FuzzTokenizer, Watched

from tiny_llm_lab.types import DoneEvent, Event, Prompt, UserError
from tiny_llm_lab.types.computing.paged import Slice

ADDED = 1000  # prompt_idx of the first request that was added inside of a callback


class TickingClock:
    """Time passes when it is asked for, so that requests arrive in every step of a run."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        self.now_s += 1e-5
        return self.now_s


@dataclass
class Served:
    """What became of the requests of a run, by their ids."""

    logs: dict[str, Log] = field(default_factory=dict)
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    aborted: set[str] = field(default_factory=set)
    added: dict[str, Prompt] = field(default_factory=dict)  # while the run went on


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
    prefills = random_prefills(llm, rng) if rng.random() < 0.6 else None
    served = Served()

    def note(event: Event) -> None:
        log = Log(may_restart=prefills is not None)
        served.logs.setdefault(str(prompt_idx_of(event)), log).events.append(event)

    done = llm.batch_generate(
        model,
        FuzzTokenizer(),
        prompts,
        max_seq_len=limit,
        batch_size=rng.choice((1, 3, 5, 9)),
        prefill_step=rng.choice((None, 1, 3, 8, 31, 128)),
        prefill_memory=rng.choice((None, 100_000)),
        chunk_policy=policies[rng.choice(tuple(policies))],
        prefill_policy=prefills,
        metrics=llm.ChunkedPrefillMetrics(),
        async_scheduling=rng.random() < 0.7,
        on_event=note,
        clock=TickingClock(),
    )
    assert [each.prompt_idx for each in done] == list(range(len(prompts))), "one completion for each prompt"
    served.outcomes = {str(each.prompt_idx): outcome_of(each) for each in done}
    return served


def random_prefills(llm: Any, rng: random.Random) -> Any:
    """Any prefill policy that changes no answer: 8 bits would."""
    return llm.PrefillScheduler(
        max_wait_s=rng.choice((0.0, 1e-4, 10.0)),
        reserved_rows=rng.randrange(4),
        long_tokens=rng.choice((None, 0, 3, 30)),
        max_pauses=rng.choice((1, 8, 99)),
        kv_limit_bytes=rng.choice((None, 0, 20_000)),
    )


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

    def __getattr__(self, name: str) -> Any:
        return getattr(self._proposer, name)

    def follow(self, computed: Sequence[tuple[Any, Slice]]) -> int:
        for sequence, _ in computed:  # the loop's first call
            sequence.request_id = self._name
        num_rows: int = self._proposer.follow(computed)
        return num_rows

    def forget(self, request_id: str) -> None:
        self._proposer.forget(self._name)


def prompt_idx_of(event: Event) -> int:
    return event.completion.prompt_idx if isinstance(event, DoneEvent) else event.prompt_idx


def name_of(prompt_idx: int) -> str:
    return str(prompt_idx) if prompt_idx < ADDED else f"x{prompt_idx - ADDED}"


def outcomes_of(served: Served, names: Mapping[str, Prompt]) -> dict[str, Outcome | str]:
    """What became of each request, or what is wrong with what was said about it."""
    found: dict[str, Outcome | str] = {}
    for name in names:
        log = served.logs.get(name)
        found[name] = served.outcomes.get(name, "it was never heard of") if log is None else log.outcome()
        if log is not None and name in served.outcomes and found[name] != served.outcomes[name]:
            found[name] = f"its events say {found[name]}, its completion {served.outcomes[name]}"
    return found
