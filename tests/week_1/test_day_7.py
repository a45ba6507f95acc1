"""Day 1.7: top-k, top-p and min-p."""

import mlx.core as mx
import numpy as np
import pytest
from tests.helpers import oracle
from tests.helpers.tolerance import EXACT, as_float64, assert_close
from tests.helpers.toy import random_array

INF = np.inf
# Probabilities 0.4, 0.3, 0.2 and 0.1, out of order.
FOUR = np.log([0.2, 0.4, 0.1, 0.3]).astype(np.float32)


def kept(scores):
    return np.isfinite(as_float64(scores))


@pytest.mark.task("1.7.1")
@pytest.mark.parametrize(
    ("k", "want"),
    [(1, [0, 1, 0, 0]), (2, [0, 1, 0, 1]), (3, [1, 1, 0, 1]), (4, [1] * 4), (9, [1] * 4), (0, [1] * 4)],
)
def test_top_k(llm, k, want):
    got = llm.apply_top_k(mx.array(FOUR), k)
    assert_close(got, np.where(want, FOUR, -INF), EXACT, legend="[..., V]")


@pytest.mark.task("1.7.1")
def test_top_k_keeps_ties(llm):
    assert kept(llm.apply_top_k(mx.array([3.0, 1.0, 2.0, 2.0]), 2)).tolist() == [True, False, True, True]


@pytest.mark.task("1.7.1")
@pytest.mark.parametrize(
    ("p", "want"),
    [
        (0.05, [0, 1, 0, 0]),  # the first token alone passes p, and one always stays
        (0.35, [0, 1, 0, 0]),
        (0.45, [0, 1, 0, 1]),  # 0.4 does not reach it: the token that crosses is kept
        (0.75, [1, 1, 0, 1]),
        (0.95, [1, 1, 1, 1]),
        (1.0, [1, 1, 1, 1]),
    ],
)
def test_top_p(llm, p, want):
    got = llm.apply_top_p(mx.array(FOUR), p)
    assert_close(got, np.where(want, FOUR, -INF), EXACT, legend="[..., V]")


@pytest.mark.task("1.7.1")
@pytest.mark.parametrize(
    ("p", "want"),
    [(0.0, [1] * 4), (0.2, [1] * 4), (0.3, [1, 1, 0, 1]), (0.6, [0, 1, 0, 1]), (1.0, [0, 1, 0, 0])],
)
def test_min_p(llm, p, want):
    # Relative to the likeliest, 0.4: the tokens stand at 0.5, 1, 0.25 and 0.75. A token at the bound is kept.
    got = llm.apply_min_p(mx.array(FOUR), p)
    assert_close(got, np.where(want, FOUR, -INF), EXACT, legend="[..., V]", what=f"min_p {p}")


@pytest.mark.task("1.7.1")
@pytest.mark.parametrize("name", ["apply_top_k", "apply_top_p", "apply_min_p"])
def test_each_row_is_cut_by_itself(llm, name):
    setting = {"apply_top_k": 5, "apply_top_p": 0.7, "apply_min_p": 0.2}[name]
    scores = random_array(1, 2, 3, 50) * 2
    got = getattr(llm, name)(scores, setting)
    for i in range(2):
        for j in range(3):
            probs = oracle.softmax(scores[i, j])
            order = np.argsort(-probs)
            want = {
                "apply_top_k": np.isin(np.arange(50), order[:5]),
                "apply_top_p": np.isin(
                    np.arange(50), order[: np.searchsorted(np.cumsum(probs[order]), 0.7) + 1]
                ),
                "apply_min_p": probs >= 0.2 * probs.max(),
            }[name]
            assert_close(
                got[i, j], np.where(want, as_float64(scores[i, j]), -INF), EXACT, what=f"row {i}, {j}"
            )


@pytest.mark.task("1.7.1")
@pytest.mark.parametrize(
    ("scores", "p", "want"),
    [
        ([3.0, 1.0, 2.0, 2.0], 0.6, [1, 0, 1, 1]),  # 0.53 and one of 0.20 reach it: the other stays too
        ([1.0, 1.0, 1.0, 1.0], 0.3, [1, 1, 1, 1]),
        ([2.0, 0.0, 2.0, 1.0], 0.3, [1, 0, 1, 0]),
    ],
)
def test_top_p_keeps_ties(llm, scores, p, want):
    got = kept(llm.apply_top_p(mx.array(scores), p))
    assert got.tolist() == [bool(each) for each in want], "every score that reaches the threshold is kept"


@pytest.mark.task("1.7.1")
def test_cuts_can_follow_each_other(llm):
    scores = llm.apply_top_k(mx.array(FOUR), 3)  # 4/9, 3/9 and 2/9 are left
    assert kept(llm.apply_top_p(scores, 0.7)).tolist() == [False, True, False, True]
    assert kept(llm.apply_min_p(scores, 0.6)).tolist() == [False, True, False, True]
