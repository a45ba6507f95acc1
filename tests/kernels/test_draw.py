"""Which tokens rows of logits keep, which are drawn from them, and how likely tokens are, against float64."""

import re
from dataclasses import replace

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
from tests.kernels.conftest import NAMES, kernel_set
from tests.kernels.test_invariance import assert_alone_as_in_company

from tiny_llm_lab.runtime.native.cpp_ops import CppOps
from tiny_llm_lab.runtime.native.draw_table import DrawTable
from tiny_llm_lab.types import DrawRow, LogitEdits, RowChanges, SamplingParams

LONG = pytest.mark.long
SIZES = pytest.mark.parametrize(
    ("V", "cases"),
    [
        (7, range(40)),
        (300, range(120)),
        (2048, range(120)),
        (151_936, (1, 2, 7, 8, 27, 30, 56)),  # also nuclei of thousands of tokens
        (248_320, (2, 4, 99)),
        pytest.param(2048, range(120, 1000), marks=LONG),
        pytest.param(151_936, range(10, 120), marks=LONG),
        pytest.param(248_320, range(10, 120), marks=LONG),
    ],
    ids=lambda value: value if isinstance(value, int) else f"from {value[0]}",
)


@SIZES
def test_what_is_kept_and_drawn(k, V, cases):
    assert check_draws(CppOps(k), CPP, V, cases) >= len(cases), "too few of the tokens at thresholds"


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
    views = x[:, -1], x[:, 2, ::2], x[1, ::-1], x[2, :, 3:50], x[0].T[:9]
    for view in (*views, mx.broadcast_to(x[0, 0], (9, 300))):
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


@pytest.fixture(params=NAMES)
def copy(request):
    return kernel_set(request.param)


def test_each_row_is_as_if_it_were_alone(copy, threads, dtype):
    """Rows that are flat, have ties, nuclei above 1,024 tokens or -inf, each with its own settings."""
    parts = [row_of(i, 2500, dtype) for i in range(130)]
    (x,) = evaluated(mx.stack([logits for logits, _ in parts]))
    rows, ops, tokens = [how for _, how in parts], CppOps(copy), mx.arange(130, dtype=mx.uint32)

    def scored(a, b):
        chosen, top, likely = copy.score(x[a:b], tokens[a:b], 5)
        return mx.concatenate([chosen[:, None], top.astype(mx.float32), likely], axis=1)

    assert_alone_as_in_company(threads, lambda a, b: ops.draw(x[a:b], rows[a:b]))
    assert_alone_as_in_company(threads, scored)


X, TOKENS, NO_FLOAT = mx.zeros((3, 64)), mx.zeros(3, mx.uint32), "logits must be float32, float16 or bfloat16"
ROW = DrawRow(SamplingParams(temperature=1.0), 1)
TABLE = DrawTable.of([ROW] * 3, 64)


def drawn_with(k, **changes):
    return CppOps(k).draw(X, [replace(ROW, changes=RowChanges(**changes))] * 3)


def edits(token, num_changes):
    return LogitEdits(np.array([token], np.uint32), np.zeros((num_changes, 3)))


ONE_WORD = np.zeros(1, np.uint32)


REFUSED = {
    "draw of integers": (lambda k: k.draw(X.astype(mx.int32), TABLE), NO_FLOAT),
    "draw of two dimensions more": (lambda k: k.draw(X[None, None], TABLE), "logits must be [n, V]"),
    "draw of no numbers": (lambda k: k.draw(X[:, :0], TABLE), "logits must have rows of one number or more"),
    "draw of fewer rows": (lambda k: k.draw(X[:2], TABLE), "edit_starts must have 3 numbers, not 4"),
    **{
        f"draw without {field}": (
            lambda k, field=field: k.draw(X, replace(TABLE, **{field: getattr(TABLE, field)[:1]})),
            f"{field} must have",
        )
        for field in ("settings", "top_k", "words", "edit_starts", "masks")
    },
    "a mask of one word": (lambda k: drawn_with(k, allowed=ONE_WORD), "allowed must have 6 numbers, not 3"),
    "an edit outside": (
        lambda k: drawn_with(k, edits=edits(64, 1)),
        "token 64 is outside a vocabulary of 64",
    ),
    "an edit without its change": (
        lambda k: drawn_with(k, edits=edits(6, 0)),
        "changes must have 9 numbers, not 0",
    ),
    "score of integers": (lambda k: k.score(X.astype(mx.int32), TOKENS, 1), NO_FLOAT),
    "score of three dimensions": (lambda k: k.score(X[None], TOKENS, 1), "logits must be [n, V]"),
    "score of tokens of int32": (
        lambda k: k.score(X, TOKENS.astype(mx.int32), 1),
        "tokens must be uint32 [3]",
    ),
    "score of fewer tokens": (lambda k: k.score(X, TOKENS[:2], 1), "tokens must be uint32 [3]"),
    "less than no likeliest": (lambda k: k.score(X, TOKENS, -1), "num_top must be 0 or more, not -1"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_it_refuses(kind):
    call, says = REFUSED[kind]
    with pytest.raises(ValueError, match=f"^[^\n]*{re.escape(says)}[^\n]*$"):
        call(kernel_set(NAMES[-1]))


def test_no_rows_are_no_tokens(k):
    none = X[:0]
    assert CppOps(k).draw(none, []).shape == k.argmax(none).shape == (0,)
    assert [each.shape for each in k.score(none, TOKENS[:0], 2)] == [(0,), (0, 2), (0, 2)]
