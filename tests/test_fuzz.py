"""A differential fuzz: whatever the company, every answer is the one that its request gets alone."""

import os

import pytest
from tests.helpers import fuzz as helper
from tests.helpers.delta_nets import by_operator
from tests.helpers.devices import on_cpu
from tests.helpers.fuzz import Fuzz
from tests.helpers.fuzz_engine import Counts

from tiny_llm_lab import LLM, SamplingParams

# More runs than in every test run: TINY_LLM_FUZZ_RUNS=3000, or python -m tests.helpers.fuzz.
RUNS = int(os.environ.get("TINY_LLM_FUZZ_RUNS", "40"))
HOTTER = {"temperature": 3.0, "top_p": 0.8, "seed": 94307}
COUNTED = 14  # runs of which it is counted what they reach


@pytest.fixture(scope="module")
def fuzz(llm):
    return Fuzz(llm)


@pytest.mark.parametrize("seed", range(COUNTED, max(RUNS, COUNTED)))
def test_answers_in_company_are_those_alone(fuzz, seed):
    fuzz.run(seed)


@pytest.mark.parametrize("seed", range(4))
def test_a_hybrid_by_mlxs_operator(llm, seed, monkeypatch):
    monkeypatch.setattr(helper, "MODELS", (("hybrid", "mlx"),))
    by_operator(monkeypatch)
    Fuzz(llm, "hybrid").run(seed)


def test_the_runs_reach_what_they_are_for(fuzz):
    before = fuzz.counts
    counts = fuzz.counts = Counts()  # of some runs alone, so that this holds in any process and order
    for seed in range(COUNTED):
        fuzz.run(seed)
    fuzz.counts = before
    assert counts.near_ties <= 1, "an excuse for rounding that is used often is an excuse for mistakes"
    reached = ("answers", "aborted", "preempted", "accepted", "cached_tokens", "changed", "scored_prompts")
    for name in (*reached, "reconfigured"):
        assert getattr(counts, name) > 0, f"no run reached {name}: {counts}"
    assert counts.accepted < counts.drafted
    assert counts.on_kernels > 0 or not fuzz.has_kernels


DRAFTED = [
    ([358, 691, 1067], 46, {"temperature": 2.0, "top_p": 0.9, "seed": 595627}),
    pytest.param([824, 554, 1022], 103, HOTTER, marks=pytest.mark.long),
]


@pytest.mark.parametrize(("words", "length", "sampling"), DRAFTED, ids=["temperature 2", "temperature 3"])
def test_drafts_draw_what_is_drawn_without_them(words, length, sampling):
    """Rows with ties and with large nuclei beside each other: one changed what the other kept."""
    prompt, answers = (words * length)[:length], {}
    sampling = SamplingParams(max_tokens=20, ignore_eos=True, **sampling)
    with on_cpu("cpp"):
        for how, num in (("off", None), ("draft:default", 8), ("draft:default", 3), ("ngram", 8)):
            with LLM(dtype="bfloat16", speculate=how, draft_gate=False, num_speculative_tokens=num) as llm:
                (done,) = llm.generate([prompt], sampling)
            answers[how, num] = done.token_ids
    assert len({*answers.values()}) == 1, answers
