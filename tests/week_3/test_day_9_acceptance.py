"""Day 3.9: which draft tokens are accepted."""

import random

import mlx.core as mx
import numpy as np
import pytest
from tests.helpers.distributions import (
    CUTS,
    ROUNDS,
    START,
    P,
    Q,
    assert_follows,
    assert_rows_follow,
    cut_probs,
    deviations,
    logits_of,
)
from tests.helpers.tolerance import F32, assert_close
from tests.helpers.toy import random_array

from tiny_llm_lab.types import SamplingParams

pytestmark = pytest.mark.task("3.9.2")


@pytest.mark.parametrize("settings", CUTS)
def test_scores_are_those_that_week_1_draws_from(llm, settings):
    sampling = SamplingParams(**settings)
    got = mx.softmax(llm.Sampler(sampling).scores(logits_of(P)), axis=-1)
    assert_close(got, cut_probs(llm, P, sampling), F32, legend="[K + 1, V]")


@pytest.mark.parametrize(
    ("draft", "want"),
    [
        ([], [0]),
        ([0], [0, 4]),
        ([1], [0]),
        ([0, 4], [0, 4, 2]),
        ([0, 3], [0, 4]),
        ([3, 4], [0]),
        ([0, 4, 2], [0, 4, 2, 1]),
        ([0, 4, 0], [0, 4, 2]),
        ([0, 0, 2], [0, 4]),
    ],
)
def test_greedy_acceptance(llm, draft, want):
    # The likeliest tokens of the four rows are 0, 4, 2 and 1.
    logits = mx.array(np.eye(5, dtype=np.float32)[[0, 4, 2, 1]])[: len(draft) + 1]
    sampler = llm.Sampler(SamplingParams())
    what = f"draft {draft}: the tokens of rows 0, 4, 2, 1 up to the first that was not drafted"
    assert llm.accept(logits, draft, sampler, START) == want, what
    q = mx.full((len(draft), 5), 0.2)
    assert llm.accept_with_draft_probs(logits, draft, q, sampler, START) == want, f"with draft_probs, {what}"


@pytest.mark.parametrize("settings", [{}, *CUTS])
def test_accepted_tokens_do_not_depend_on_the_draft(llm, settings):
    sampling, rng = SamplingParams(seed=3, **settings), random.Random(4)
    for position in range(START, START + 12):
        rows = random_array(position, 5, 6) * 2
        drawn = llm.Sampler(sampling)(rows, position).tolist()
        draft = [token if rng.random() < 0.7 else rng.randrange(6) for token in drawn[:4]]
        right = next((i for i in range(4) if draft[i] != drawn[i]), 4)
        sampler = llm.Sampler(sampling)
        got = llm.accept(rows, draft, sampler, position)
        assert got == drawn[: right + 1], f"draft {draft}, where the sampler draws {drawn} from the rows"


def drafted_steps(llm, sampling, p=P, q=Q, rounds=ROUNDS):
    """Steps whose tokens were drafted from q, uncoupled."""
    drafter = llm.Drafter(llm.Sampler(sampling), coupled=False)
    p_logits, q_logits = logits_of(p), logits_of(q)
    steps = []
    for i in range(rounds):
        position = START + 3 * i
        drawn = [drafter.draft(q_logits[k : k + 1], position + k) for k in range(len(q))]
        draft, probs = [token for token, _ in drawn], mx.stack([row for _, row in drawn])
        steps.append(
            (draft, llm.accept_with_draft_probs(p_logits, draft, probs, drafter.sampler, position), probs)
        )
    return steps


@pytest.mark.parametrize("size", [0, 1, 4])
def test_the_bonus_token_is_what_the_sampler_draws_at_its_position(llm, size):
    sampler, logits = llm.Sampler(SamplingParams(temperature=1.0, seed=5)), random_array(size, size + 1, 40)
    draft, q = [7, 2, 7, 30][:size], mx.softmax(logits[:size], axis=-1)
    for position in range(START, START + 8):
        want = [*draft, *sampler(logits[-1:], position + size).tolist()]
        assert llm.accept_with_draft_probs(logits, draft, q, sampler, position) == want


@pytest.mark.parametrize("settings", CUTS)
def test_drawn_drafts_keep_the_distribution(llm, settings):
    sampling = SamplingParams(seed=2, **settings)
    steps = drafted_steps(llm, sampling)
    p, q = cut_probs(llm, P, sampling), cut_probs(llm, Q, sampling)
    assert_close(steps[0][2], q, F32, legend="[K, V]", what="what the draft tokens were drawn from")
    assert_rows_follow([step for _, step, _ in steps], p)
    assert_rows_follow([draft for draft, _, _ in steps], q)
    accepted = sum(len(step) > 1 for _, step, _ in steps) / ROUNDS
    want = np.minimum(p[0], q[0]).sum()
    assert abs(accepted - want) < deviations(want), (
        f"{accepted} of the first draft tokens were accepted, expected {want}"
    )


@pytest.mark.parametrize("token", range(5))
def test_each_draft_token_is_accepted_with_its_own_probability(llm, token):
    sampler = llm.Sampler(SamplingParams(temperature=1.0, seed=6))
    q, logits = mx.array(Q[:1].astype(np.float32)), logits_of(P[:2])
    steps = [llm.accept_with_draft_probs(logits, [token], q, sampler, START + 2 * i) for i in range(ROUNDS)]
    accepted = [step for step in steps if len(step) == 2]
    want = min(1.0, P[0, token] / Q[0, token])
    assert {step[0] for step in accepted} <= {token}
    assert abs(len(accepted) / ROUNDS - want) < deviations(want)
    rest = np.maximum(P[0] - Q[0], 0)
    if want < 1:
        assert_follows([step[0] for step in steps if len(step) == 1], rest / rest.sum(), "replacements")


def test_whether_a_draft_token_is_accepted_does_not_depend_on_the_one_before(llm):
    """Each of two draft tokens is accepted half of the time, so both are in a quarter of the steps."""
    p, q = np.array([[0.5, 0.5], [0.5, 0.5], [0.5, 0.5]]), np.array([[1.0, 0.0], [1.0, 0.0]])
    sampler = llm.Sampler(SamplingParams(temperature=1.0, seed=9))
    probs = mx.array(q.astype(np.float32))
    steps = [
        llm.accept_with_draft_probs(logits_of(p), [0, 0], probs, sampler, START + 3 * i)
        for i in range(ROUNDS)
    ]
    for length, want in ((1, 0.5), (2, 0.25), (3, 0.25)):
        share = sum(len(step) == length for step in steps) / ROUNDS
        assert abs(share - want) < deviations(want), (
            f"{share:.3f} of the steps have {length} tokens, expected {want}"
        )


def test_coupled_drafts_are_drawn_with_the_same_key(llm):
    sampler = llm.Sampler(SamplingParams(temperature=1.0, seed=8))
    drafter = llm.Drafter(sampler)
    p, q = logits_of(P[:1]), logits_of(Q[:1])
    drawn = [(drafter.draft(q, START + i), sampler(p, START + i).item()) for i in range(ROUNDS)]
    assert {probs for (_, probs), _ in drawn} == {None}
    assert_follows([token for (token, _), _ in drawn], Q[0], "draft")
    assert_follows([token for _, token in drawn], P[0], "tokens")
    agreed = sum(drafted == token for (drafted, _), token in drawn) / ROUNDS
    by_chance = float(P[0] @ Q[0])
    assert agreed > by_chance + deviations(by_chance), "no more often than independent draws"
    assert all(drafter.draft(p, START + i)[0] == sampler(p, START + i).item() for i in range(50))


@pytest.mark.parametrize("settings", [{}, {"temperature": 0.7}])
def test_acceptance_rejects_shapes_that_do_not_fit(llm, settings):
    sampler = llm.Sampler(SamplingParams(**settings))
    logits, q = logits_of(P), mx.array(Q.astype(np.float32))
    for draft in ([], [0], [0, 1, 2]):
        with pytest.raises(ValueError):
            llm.accept(logits, draft, sampler, START)
        with pytest.raises(ValueError):
            llm.accept_with_draft_probs(logits, draft, q[: len(draft)], sampler, START)
    for probs in (q[:1], q[:, :4]):
        with pytest.raises(ValueError):
            llm.accept_with_draft_probs(logits, [0, 1], probs, sampler, START)
