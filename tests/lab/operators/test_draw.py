"""Draws and scores of the `mlx` set against float64, and their graph, which does not grow with rows."""

import mlx.core as mx
import numpy as np
import pytest
from tests.helpers.draws import DTYPES, MLX, check_draws, check_frequencies, check_scores, row_of
from tests.helpers.matrices import evaluated

from benchmarks.measurements.launches import launches
from tiny_llm_lab.types import DrawRow, LogitEdits, RowChanges, SamplingParams

_LONG = pytest.mark.long
_SIZES = pytest.mark.parametrize(
    ("vocab_size", "first", "end"),
    [
        (7, 0, 40),
        (300, 0, 80),
        (2048, 0, 80),
        (151_936, 0, 5),
        (248_320, 7, 10),
        pytest.param(2048, 80, 600, marks=_LONG),
        pytest.param(151_936, 10, 90, marks=_LONG),
        pytest.param(248_320, 10, 90, marks=_LONG),
    ],
)


@_SIZES
def test_what_is_kept_and_drawn(ops, vocab_size, first, end):
    cases = range(first, end)
    assert check_draws(ops, MLX, vocab_size, cases) >= len(cases)


@_SIZES
def test_logprobs_and_the_likeliest(ops, vocab_size, first, end):
    check_scores(ops, vocab_size, range(first, end), in_order=False)


@pytest.mark.parametrize("num_draws", [1000, pytest.param(20_000, marks=_LONG)])
def test_frequencies(ops, num_draws):
    check_frequencies(ops, num_draws)


def test_each_row_is_drawn_and_scored_as_if_it_were_alone(ops):
    """Flat rows, ties, rows of -inf, nuclei above 1,024 tokens, in any company."""
    for dtype in DTYPES:
        parts = [row_of(i, 2500, dtype) for i in range(40)]
        (x,) = evaluated(mx.stack([logits for logits, _ in parts]))
        rows, tokens = [how for _, how in parts], mx.arange(40, dtype=mx.uint32)
        alone = [int(ops.draw(x[i : i + 1], rows[i : i + 1]).item()) for i in range(40)]
        scores = [
            [each.tolist() for each in ops.score(x[i : i + 1], tokens[i : i + 1], 5)] for i in range(40)
        ]
        rng = np.random.default_rng(1)
        for company in (np.arange(40), 39 - np.arange(40), *(rng.permutation(40)[:n] for n in (1, 2, 33))):
            places = mx.array(company)
            assert ops.draw(x[places], [rows[i] for i in company]).tolist() == [alone[i] for i in company]
            together = [each.tolist() for each in ops.score(x[places], tokens[places], 5)]
            assert together == [[scores[i][part][0] for i in company] for part in range(3)]


def test_the_graph_does_not_grow_with_rows(ops):
    """At most 60 launches of a GPU for everything that a request can ask for; greedy rows add one."""
    _, how = row_of(3, 300)
    assert how.changes.edits is not None
    mask = np.full(10, 0x0FFFFFFF, np.uint32)
    changes = RowChanges(how.changes.edits, mask)
    row = DrawRow(SamplingParams(temperature=0.7, top_k=20, top_p=0.8, min_p=0.01), 1, changes)
    counts = set()
    for num_rows in (1, 8, 64):
        logits, tokens = evaluated(mx.zeros((num_rows, 300), mx.bfloat16), mx.zeros(num_rows, mx.uint32))

        def step(x=logits, tokens=tokens):
            return [ops.draw(x, [row] * len(x)), *ops.score(x, tokens, 20)]

        counts.add(sum(launches(step).values()))
        greedy = launches(lambda x=logits: [ops.draw(x, [DrawRow(SamplingParams(), 1)] * len(x))])
        assert sum(greedy.values()) == 2, "the cast to float32, and the largest"
    assert len(counts) == 1 and max(counts) <= 60, f"launches for 1, 8 and 64 rows: {counts}"


def test_no_rows_are_no_tokens(ops):
    assert ops.draw(mx.zeros((0, 300)), []).shape == (0,)


def test_a_token_outside_the_vocabulary_is_not_edited(ops):
    edits = LogitEdits(np.array([3, 300], np.uint32), np.ones((2, 3), np.float32))
    with pytest.raises(ValueError, match="token 300 is outside a vocabulary of 300"):
        ops.draw(mx.zeros((1, 300)), [DrawRow(SamplingParams(), 1, RowChanges(edits))])
