"""Day 1.7: top-k, top-p and min-p, and a seeded sampler."""

import mlx.core as mx
import numpy as np
import pytest
from tests.helpers import oracle
from tests.helpers.fakes import FakeModel
from tests.helpers.tolerance import EXACT, F32, as_float64, assert_close, rounding
from tests.helpers.toy import ByteTokenizer, random_array

from tiny_llm_lab.types import SamplingParams, gumbel

# The task of each test that names no other.
pytestmark = pytest.mark.task("1.7.2")

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


# A seeded sampler


# Probabilities 0.4, 0.3, 0.2 and 0.1, out of order.


def sampler(llm, **settings):
    return llm.Sampler(SamplingParams(**settings))


def test_greedy_by_default(llm):
    logits = random_array(2, 4, 9)
    sample = llm.Sampler()
    assert sample.is_greedy
    assert not sampler(llm, temperature=0.5).is_greedy
    assert sample(logits, 7).tolist() == np.argmax(as_float64(logits), axis=-1).tolist()
    assert sample(logits, 7).shape == (4,)


def test_the_loop_is_greedy_without_a_sampler(llm):
    llm.Sampler()
    model = FakeModel()
    events = list(llm.simple_generate(model, ByteTokenizer(), "greedy", max_tokens=4))
    assert [event.token_id for event in events] == model.answer_to(b"greedy", 4)


def draws(llm, n=2000, **settings):
    """Relative frequencies of the four tokens in n draws."""
    sample = sampler(llm, **settings)
    drawn = np.array(sample(mx.broadcast_to(mx.array(FOUR), (n, 4)), 0))
    return np.bincount(drawn, minlength=4) / n


# Four standard deviations of a frequency over 2000 draws.
def assert_frequencies(got, want):
    assert np.abs(got - want).max() < 4 * 0.5 / 2000**0.5, f"drawn {got}, expected about {want}"


def test_temperature_1_draws_from_the_softmax(llm):
    assert_frequencies(draws(llm, temperature=1.0), [0.2, 0.4, 0.1, 0.3])


@pytest.mark.parametrize("temp", [0.5, 2.0])
def test_temperature_divides_the_logits(llm, temp):
    assert_frequencies(draws(llm, temperature=temp), oracle.softmax(FOUR / temp))


@pytest.mark.parametrize(
    ("settings", "tokens"),
    [({"top_k": 2}, [1, 3]), ({"top_p": 0.75}, [0, 1, 3]), ({"min_p": 0.6}, [1, 3]), ({"top_k": 1}, [1])],
)
def test_sampler_draws_only_what_the_cuts_keep(llm, settings, tokens):
    want = np.where(np.isin(np.arange(4), tokens), [0.2, 0.4, 0.1, 0.3], 0.0)
    got = draws(llm, temperature=1.0, **settings)
    assert_frequencies(got, want / want.sum())
    assert set(np.flatnonzero(got)) == set(tokens)


def test_top_p_is_measured_after_temperature_and_top_k(llm):
    # At temperature 2 the four are 0.24, 0.33, 0.17, 0.29 likely... and 0.38, 0.34, 0.28 after top-k 3.
    probs = oracle.softmax(FOUR / 2)
    three = np.sort(probs)[::-1][:3] / np.sort(probs)[::-1][:3].sum()
    between = (three[0] + probs.max()) / 2  # one token is enough after the cut, not before it
    assert set(np.flatnonzero(draws(llm, temperature=2.0, top_k=3, top_p=float(between)))) == {1}


def test_a_draw_is_the_largest_sum_of_score_and_gumbel_number(llm):
    logits = random_array(8, 30, 40) * 2
    sample = sampler(llm, temperature=0.8, top_k=30, seed=5)
    numbers = gumbel([sample.key(60 + i) for i in range(30)], 40)
    want = np.argmax(as_float64(sample.scores(logits)) + as_float64(numbers), axis=-1)
    assert sample(logits, 60).tolist() == want.tolist(), "one number for each position and token"


@pytest.mark.parametrize(
    "cuts", [{}, {"top_k": 50}, {"top_p": 0.9}, {"min_p": 0.05}, {"top_k": 100, "top_p": 0.6, "min_p": 0.01}]
)
def test_a_row_is_drawn_as_if_it_were_alone(llm, cuts):
    # Peaked, with ties, flat, and with two tokens that are possible at all.
    rows = as_float64(random_array(9, 8, 2048) * 6).astype(np.float32)
    rows[2:4] = np.round(rows[2:4])
    rows[4:6] = 0
    rows[6, 2:] = -INF
    logits, sample = mx.array(rows), sampler(llm, temperature=1.0, seed=2, **cuts)
    together, scores = sample(logits, 100).tolist(), sample.scores(logits)
    for i in range(8):
        alone = logits[i : i + 1]
        assert_close(sample.scores(alone)[0], scores[i], EXACT, what=f"scores of row {i}")
        assert sample(alone, 100 + i).tolist() == together[i : i + 1], f"row {i}"


def test_truncated_logits_are_what_the_sampler_draws_from(llm):
    assert_close(llm.truncated_logits(mx.array(FOUR), 0.5), FOUR / 0.5, F32, dtype=mx.float32)
    # At temperature 2 the four are 0.24, 0.33, 0.17 and 0.29 likely: the third goes, then the first.
    got = llm.truncated_logits(mx.array(FOUR)[None].astype(mx.float16), 2.0, 0.7, 3)
    want = [[-INF, FOUR[1] / 2, -INF, FOUR[3] / 2]]
    assert_close(got, want, rounding(mx.float16), legend="[..., V]", dtype=mx.float32)
    # Of the three 0.28, 0.39 and 0.34: only all reach 0.74. Before the division two do, 0.22, 0.44 and 0.33.
    want = [FOUR[0] / 2, FOUR[1] / 2, -INF, FOUR[3] / 2]
    got = llm.truncated_logits(mx.array(FOUR), 2.0, 0.74, 3)
    assert_close(got, want, F32, legend="[V]", what="top-p of logits / temperature")
    with pytest.raises(ValueError):
        llm.truncated_logits(mx.array(FOUR), 0.0)


def test_same_seed_and_position_same_draw_whatever_else_is_drawn(llm):
    logits = random_array(3, 20, 50)
    one, two = (sampler(llm, temperature=1.0, seed=7) for _ in range(2))
    first = one(logits, 10).tolist()
    mx.random.seed(5)
    mx.random.normal((5,))
    # Other positions, other company, another order: row i of `logits` stands at position 10 + i.
    assert two(logits[5:9], 15).tolist() == first[5:9]
    assert two(logits[:1], 10).tolist() == first[:1]
    assert two(logits, 10).tolist() == one(logits, 10).tolist() == first


def test_every_position_and_every_seed_draws_anew(llm):
    logits = mx.broadcast_to(random_array(4, 1, 50), (40, 50))
    first = sampler(llm, temperature=1.0, seed=7)(logits, 0).tolist()
    assert len(set(first)) > 10
    assert sampler(llm, temperature=1.0, seed=7)(logits, 40).tolist() != first
    # Neighbouring seeds are not the same draws, shifted.
    other = sampler(llm, temperature=1.0, seed=8)(logits, 0).tolist()
    assert other != first
    assert other[:-1] != first[1:]
    assert first[:-1] != other[1:]


def test_no_two_seeds_and_positions_share_a_key(llm):
    owners = {}
    for seed in range(10):
        sample = sampler(llm, temperature=1.0, seed=seed)
        for position in range(100):
            owners.setdefault(sample.key(position), []).append((seed, position))
    shared = [each for each in owners.values() if len(each) > 1]
    assert all(isinstance(key, int) and 0 <= key < 2**64 for key in owners)
    assert not shared, f"one key for several (seed, position): {shared[0][:3]}"


@pytest.mark.parametrize("seed", [0, 1, 2**63, 2**64 - 1])
def test_any_seed_of_64_bits(llm, seed):
    drawn = sampler(llm, temperature=1.0, seed=seed)(random_array(6, 3, 9), 2**31)
    assert drawn.dtype == mx.uint32
    assert all(0 <= token < 9 for token in drawn.tolist())


def test_rows_of_several_requests_are_drawn_as_each_alone(llm):
    logits = random_array(7, 7, 50) * 2
    greedy, warm = llm.Sampler(), sampler(llm, temperature=0.9, top_k=20, seed=3)
    cold = sampler(llm, temperature=0.3, top_p=0.9, seed=4)
    parts = [(warm, 5, 2), (greedy, 90, 1), (cold, 0, 3), (greedy, 4, 1)]
    got = llm.sample_rows(logits, parts).tolist()
    want, first = [], 0
    for sample, position, count in parts:
        want += sample(logits[first : first + count], position).tolist()
        first += count
    assert got == want
    assert llm.sample_rows(logits[:2], [(greedy, 3, 2)]).tolist() == llm.most_likely(logits[:2]).tolist()
    assert llm.sample_rows(logits[:0], []).tolist() == []


def test_sampling_leaves_the_global_generator_alone(llm):
    mx.random.seed(3)
    want = mx.random.normal((4,)).tolist()
    mx.random.seed(3)
    sampler(llm, temperature=1.0)(random_array(5, 2, 9), 0).tolist()
    assert mx.random.normal((4,)).tolist() == want


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
def test_sampler_takes_16_bit_logits(llm, dtype):
    logits = mx.broadcast_to(mx.array(FOUR), (2000, 4)).astype(dtype)
    drawn = np.array(sampler(llm, temperature=1.0)(logits, 0))
    assert_frequencies(np.bincount(drawn, minlength=4) / 2000, [0.2, 0.4, 0.1, 0.3])
