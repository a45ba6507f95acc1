"""Which tokens rows of logits keep, which are drawn from them, and how likely tokens are, against float64."""

import mlx.core as mx
import numpy as np
import pytest
from tests.helpers.draws import (
    ARRAYS,
    CPP,
    changed,
    check_draws,
    check_frequencies,
    check_scores,
    row_of,
    wide,
)
from tests.helpers.matrices import evaluated
from tests.helpers.toy import random_array

from tiny_llm_lab.runtime.native.cpp_ops import CppOps
from tiny_llm_lab.types import DrawRow, SamplingParams

LONG = pytest.mark.long
SIZES = pytest.mark.parametrize(
    ("V", "cases"),
    [
        (7, range(40)),
        (300, range(120)),
        (2048, range(120)),
        (151_936, range(7)),
        (248_320, range(7, 10)),
        pytest.param(2048, range(120, 1000), marks=LONG),
        pytest.param(151_936, range(10, 120), marks=LONG),
        pytest.param(248_320, range(10, 120), marks=LONG),
    ],
    ids=lambda value: value if isinstance(value, int) else f"from {value.start}",
)


@SIZES
def test_what_is_kept_and_drawn(k, V, cases):
    assert check_draws(CppOps(k), CPP, V, cases) >= len(cases), (
        "too few of the tokens at thresholds were seen"
    )


@SIZES
def test_logprobs_and_the_likeliest(k, V, cases):
    check_scores(CppOps(k), V, cases, in_order=True)


@pytest.mark.parametrize("num_draws", [4000, pytest.param(100_000, marks=LONG)])
def test_frequencies(k, num_draws):
    check_frequencies(CppOps(k), num_draws)


class Arrays:
    """Draws as a request does that has no operators."""

    def __init__(self, llm):
        self.llm = llm

    def draw(self, logits, rows):
        tokens = []
        for i, row in enumerate(rows):
            sampler = self.llm.Sampler(row.sampling)
            changed_logits = mx.array(changed(wide(logits[i]), row.changes))[None]
            tokens.append(sampler(changed_logits, row.key - sampler.key(0)))
        return mx.concatenate(tokens)


@pytest.mark.parametrize("V", [300, 2048])
def test_arrays_draw_the_same(llm, V):
    """As near to the truth as MLX's operators: only at a threshold may they differ from ours."""
    assert check_draws(Arrays(llm), ARRAYS, V, range(60)) > 60


def test_views(k, dtype):
    (x,) = evaluated(random_array(1, 4, 6, 300, dtype=dtype) * 3)
    for view in (
        x[:, -1],
        x[:, 2, ::2],
        x[1, ::-1],
        x[2, :, 3:50],
        x[0].T[:9],
        mx.broadcast_to(x[0, 0], (9, 300)),
    ):
        (whole,) = evaluated(mx.array(np.array(view.astype(mx.float32))).astype(dtype))
        rows, tokens = [row_of(i, 1)[1] for i in range(len(view))], mx.arange(len(view), dtype=mx.uint32) % 6
        rows = [DrawRow(row.sampling, row.key) for row in rows]
        for run in (lambda a: [CppOps(k).draw(a, rows)], lambda a: k.score(a, tokens, 5)):  # noqa: B023
            for got, want in zip(run(view), run(whole), strict=True):
                assert got.tolist() == want.tolist(), f"a view of {view.shape}"


@pytest.mark.parametrize("V", [1, 3, 300])
@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf, -3e38, 3e38])
def test_numbers_that_no_model_should_give(k, V, number):
    """A broken model gets a token of the vocabulary, and one whose logit is the largest if there is one."""
    settings = [{}, {"top_p": 0.5}, {"top_k": 2}, {"min_p": 0.5}, {"temperature": 1e-6}, {"temperature": 0.0}]
    rows = [DrawRow(SamplingParams(**{"temperature": 1.0} | s), key) for s in settings for key in range(40)]
    for others in (number, np.nan, -np.inf):
        x = mx.full((len(rows), V), others)
        x[:, V // 2] = number
        drawn = np.array(CppOps(k).draw(x, rows))
        assert drawn.max() < V, f"{number} among {others}"
        if number > -3e38:
            assert others == number or (drawn == V // 2).all(), f"{number} among {others}"
        mx.eval(k.score(x, mx.zeros(len(rows), mx.uint32), min(V, 5)))
