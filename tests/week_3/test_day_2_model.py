"""Day 3.2: steps of packed rows through the model."""

import mlx.core as mx
import numpy as np
import pytest
from tests.helpers.batching import computed_rows
from tests.helpers.paging import PagedPrompts
from tests.helpers.tolerance import F32_MODEL, as_float64, assert_close
from tests.helpers.toy import QWEN2, QWEN3, random_tokens, toy_model, toy_weights

from tiny_llm_lab.types import ALL, Wanted

pytestmark = pytest.mark.task("3.2.2")


def in_one_piece(model, tokens):
    """The logits of a prompt alone, without pages: [L, V]."""
    return model(tokens[None], 0, model.create_kv_cache())[0]


SCHEDULES = {
    "all at once": [[40, 17, 33]],
    "one after the other": [[40, 0, 0], [0, 17, 0], [0, 0, 33]],
    "chunks beside decodes": [[32, 0, 7], [1, 10, 1], [1, 0, 24], [5, 1, 1], [1, 6, 0]],
    "token by token": [[1, 1, 1]] * 17 + [[1, 0, 1]] * 16 + [[1, 0, 0]] * 7,
}


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(
    ("config", "block_size"), [(QWEN3, 1), (QWEN3, 3), (QWEN3, 16), (QWEN3, 32), (QWEN3, 64), (QWEN2, 4)]
)
def test_pages_do_not_change_logits(llm, schedule, config, block_size):
    model, prompts = toy_model(llm, config), [random_tokens(r, n) for r, n in enumerate((40, 17, 33))]
    got = PagedPrompts(llm, model, prompts, block_size).run(SCHEDULES[schedule])
    for r, (mine, prompt) in enumerate(zip(got, prompts, strict=True)):
        want = in_one_piece(model, prompt)
        assert_close(mine, want, F32_MODEL, what=f"logits of request {r}", legend="[L, V]")
        assert mx.array_equal(mx.argmax(mine, -1), mx.argmax(want, -1))


@pytest.mark.parametrize(
    "rows", [[], [0], [6], [5, 6, 0], [2, 3, 4], [8, 0, 1, 2, 3, 4, 5, 6, 7], [3, 3], [*range(9)]]
)
def test_rows_whose_logits_are_wanted(llm, rows):
    prompts = [random_tokens(r, n) for r, n in enumerate((20, 9))]
    model, ways = toy_model(llm), []
    for wanted in (None, rows):
        paged = PagedPrompts(llm, model, prompts, 4)
        paged.step([13, 7])
        ways.append((paged.step([7, 2], wanted), paged))
    (everything, whole), (got, some) = ways
    assert_close(got, as_float64(everything)[rows], F32_MODEL, legend="[rows, L, V]", dtype=mx.float32)
    some.cache.materialize()
    for i in range(2):
        # Rows whose logits are not asked for are stored all the same.
        assert_close(some.cache.keys[i], whole.cache.keys[i], F32_MODEL, what=f"keys of layer {i}")
        assert_close(some.cache.values[i], whole.cache.values[i], F32_MODEL, what=f"values of layer {i}")


@pytest.mark.parametrize("rows", [[], [2], [2, 0], [0, 1, 2]])
@pytest.mark.parametrize("keep", [ALL, 1, 0])
def test_rows_of_a_batch_without_pages(llm, rows, keep):
    model, tokens = toy_model(llm), random_tokens(4, 3, 5)
    want = as_float64(model(tokens, wanted=Wanted(keep)))[rows]
    assert_close(model(tokens, wanted=Wanted(keep, rows)), want, F32_MODEL, legend="[rows, L, V]")
    cache = model.create_kv_cache()
    model(tokens[:, :3], 0, cache, wanted=Wanted(last=0))
    got = model(tokens[:, 3:], 3, cache, wanted=Wanted(keep, rows))
    assert_close(got, want if keep < 5 else want[:, 3:], F32_MODEL, what="with a cache")
    batch = computed_rows(llm, model, [tokens[r : r + 1, :n] for r, n in enumerate((2, 4, 3))])
    one_more = mx.stack([tokens[r, n] for r, n in enumerate((2, 4, 3))])[:, None]
    want = [as_float64(model(tokens[r : r + 1, : n + 1]))[:, -1:] for r, n in enumerate((2, 4, 3))]
    got = model(one_more, [2, 4, 3], batch, wanted=Wanted(rows=rows))
    target = np.concatenate([want[r] for r in rows]) if rows else np.zeros((0, 1, 258))
    assert_close(got, target, F32_MODEL, what="rows of their own lengths")


def test_the_head_runs_on_the_rows_that_are_wanted(llm):
    rows = []

    class Counting(llm.ArrayOps):
        def swiglu(self, gate, up):
            rows.append(up.shape[:2])
            return super().swiglu(gate, up)

        def linear(self, x, weights, biases=()):
            if weights[0] is head:
                rows.append(x.shape[:2])
            return super().linear(x, weights, biases)

    weights = toy_weights(QWEN3)
    head, model = weights["model.embed_tokens.weight"], llm.Qwen(QWEN3, weights, Counting())
    PagedPrompts(llm, model, [random_tokens(1, 30), random_tokens(2, 5)], 4).step([30, 5], [29, 34])
    assert rows == [(35, 1), (2, 1), (2, 1)], "the feed-forward networks of both layers, and the head"
