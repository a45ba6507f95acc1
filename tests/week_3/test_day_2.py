"""Day 3.2: attention over pages, and steps of packed rows through the model."""

import math

import mlx.core as mx
import numpy as np
import pytest
from tests.helpers import oracle
from tests.helpers.paging import in_pages, packed_rows, scattered_blocks
from tests.helpers.tolerance import EXACT, F32, F32_MODEL, as_float64, assert_close, peak_bytes, rounding
from tests.helpers.toy import QWEN2, QWEN3, random_array, random_tokens, toy_model

from tiny_llm_lab.types import UserError

# What a step computes: stored tokens of each request, with the new ones, and how many are new.
STEPS = [
    ([1], [1]),
    ([5], [5]),
    ([40], [1]),
    ([40, 7, 33, 32], [1, 1, 1, 1]),
    ([70, 31, 64, 9], [6, 1, 64, 1]),
]


class Requests:
    """Random queries, keys and values of requests, and the layout of their last `sizes` tokens."""

    def __init__(self, llm, lengths, sizes, block_size=4, H=4, G=2, D=8, dtype=mx.float32):
        self.ids, num_blocks = scattered_blocks(1, block_size, lengths)
        parts = [(ids, n - new, new) for ids, n, new in zip(self.ids, lengths, sizes, strict=True)]
        self.layout = llm.StepLayout.of(block_size, parts)
        self.q, self.k, self.v = (
            [random_array(10 * i + r, heads, n, D, dtype=dtype) for r, n in enumerate(lengths)]
            for i, heads in enumerate((H, G, G))
        )
        # Before the step only the tokens that are stored already, and garbage everywhere else.
        self.old_keys, self.old_values = (
            in_pages(
                [t[:, : t.shape[1] - new] for t, new in zip(tokens, sizes, strict=True)],
                [
                    ids[: -(-(n - new) // block_size)]
                    for ids, n, new in zip(self.ids, lengths, sizes, strict=True)
                ],
                block_size,
                num_blocks,
                math.nan,
            )
            for tokens in (self.k, self.v)
        )
        self.keys, self.values = (
            in_pages(tokens, self.ids, block_size, num_blocks, math.nan) for tokens in (self.k, self.v)
        )
        self.sizes = sizes
        self.new_q, self.new_k, self.new_v = (packed_rows(t, sizes) for t in (self.q, self.k, self.v))

    def want(self):
        """Each request alone, in float64: [T, 1, H * D]."""
        rows = []
        for q, k, v, new in zip(self.q, self.k, self.v, self.sizes, strict=True):
            own = q[None, :, q.shape[1] - new :]
            out = oracle.attention(own, k[None], v[None], causal=True)[0]
            rows.append(out.swapaxes(0, 1).reshape(new, 1, -1))
        return np.concatenate(rows)


@pytest.mark.task("3.2.1")
@pytest.mark.parametrize("block_size", [1, 3, 16, 32, 64])
@pytest.mark.parametrize(("lengths", "sizes"), STEPS)
def test_attention_over_pages(llm, lengths, sizes, block_size):
    step = Requests(llm, lengths, sizes, block_size)
    got = llm.PagedAttention(step.layout)(step.new_q, step.keys, step.values)
    assert_close(got, step.want(), F32, dtype=mx.float32, legend="[T, 1, H * D]")


@pytest.mark.task("3.2.1")
@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
def test_attention_over_pages_of_16_bits(llm, dtype):
    step = Requests(llm, [70, 31, 64, 9], [6, 1, 64, 1], dtype=dtype)
    got = llm.PagedAttention(step.layout)(step.new_q, step.keys, step.values)
    assert_close(got, step.want(), rounding(dtype, 4), dtype=dtype, legend="[T, 1, H * D]")


@pytest.mark.task("3.2.1")
@pytest.mark.parametrize(("H", "G"), [(1, 1), (6, 1), (12, 3)])
def test_attention_over_pages_of_groups(llm, H, G):
    step = Requests(llm, [9, 20, 5], [1, 3, 1], H=H, G=G)
    got = llm.PagedAttention(step.layout)(step.new_q, step.keys, step.values)
    assert_close(got, step.want(), F32, legend="[T, 1, H * D]")


@pytest.mark.task("3.2.1")
@pytest.mark.parametrize("scale", [1.5, 0.0])
def test_attention_over_pages_takes_a_scale(llm, scale):
    step = Requests(llm, [9, 20], [1, 3])
    got = llm.PagedAttention(step.layout)(step.new_q, step.keys, step.values, scale)
    step.q = [q * (scale * math.sqrt(8)) for q in step.q]
    # Scores of a dozen units, of which exp makes a relative error.
    assert_close(got, step.want(), rounding(mx.float32, 1000), legend="[T, 1, H * D]")


@pytest.mark.task("3.2.1")
def test_requests_may_share_blocks(llm):
    prefix, own = [5, 0], [[2], [7]]
    layout = llm.StepLayout.of(4, [([*prefix, *last], 9, 1) for last in own])
    keys, values = random_array(1, 8, 2, 4, 8), random_array(2, 8, 2, 4, 8)
    q = random_array(3, 2, 4, 1, 8)
    got = llm.PagedAttention(layout)(q, keys, values)
    for r, last in enumerate(own):
        k, v = (
            mx.concatenate([pool[block] for block in (*prefix, *last)], axis=1)[None, :, :10]
            for pool in (keys, values)
        )
        want = oracle.attention(q[r : r + 1], k, v).reshape(1, 1, 32)
        assert_close(got[r : r + 1], want, F32, what=f"request {r}")


def layer_of(llm, step, block_size=4, num_layers=1):
    num_blocks, G, _, D = step.old_keys.shape
    config = QWEN3.__class__(**{**QWEN3.__dict__, "num_key_value_heads": G, "head_dim": D})
    cache = llm.PagedKvCache(config, num_blocks, block_size, step.old_keys.dtype)
    for pools, old in ((cache.keys, step.old_keys), (cache.values, step.old_values)):
        pools[1] = old * 1
    mx.eval(cache.keys, cache.values)
    return cache, cache.begin_step(step.layout)[1]


@pytest.mark.task("3.2.1")
@pytest.mark.parametrize("block_size", [1, 3, 16])
@pytest.mark.parametrize(("lengths", "sizes"), STEPS)
def test_a_layer_stores_and_attends(llm, lengths, sizes, block_size):
    step = Requests(llm, lengths, sizes, block_size)
    cache, layer = layer_of(llm, step, block_size)
    got = layer.attend(step.new_q, step.new_k, step.new_v)
    assert_close(got, step.want(), F32, dtype=mx.float32, legend="[T, 1, H * D]")
    for pool, want in ((cache.keys[1], step.keys), (cache.values[1], step.values)):
        same = np.nan_to_num(as_float64(pool), nan=99.0)
        assert_close(
            same, np.nan_to_num(as_float64(want), nan=99.0), EXACT, what="the pool: what is stored, and 99"
        )
    assert not np.any(as_float64(cache.keys[0])), "the other layer's pool was written"


@pytest.mark.task("3.2.1")
def test_a_layer_stands_where_its_rows_stand(llm):
    cache = llm.PagedKvCache(QWEN3, 8, 4)
    layers = cache.begin_step(llm.StepLayout.of(4, [([7, 2], 2, 5), ([5], 3, 1)]))
    assert [layer.offset for layer in layers] == [[2, 3, 4, 5, 6, 3]] * 2


@pytest.mark.task("3.2.1")
def test_a_pool_may_keep_fewer_bits_than_the_model(llm):
    step = Requests(llm, [9, 20], [1, 3])
    cache = llm.PagedKvCache(QWEN3, len(step.keys), 4, mx.bfloat16)
    config_layer = cache.begin_step(step.layout)[0]
    k = random_array(5, 4, 2, 1, 24)
    out = config_layer.attend(random_array(4, 4, 4, 1, 24), k, k)
    assert out.dtype == mx.float32
    assert cache.keys[0].dtype == mx.bfloat16


@pytest.mark.task("3.2.1")
def test_a_step_changes_the_pools_in_place(llm):
    config = QWEN3.__class__(**{**QWEN3.__dict__, "head_dim": 64})
    cache = llm.PagedKvCache(config, 1024, 32)
    size = cache.keys[0].nbytes
    q, k = random_array(1, 3, 4, 1, 64), random_array(2, 3, 2, 1, 64)
    mx.eval(q, k)

    def step(at):
        layout = llm.StepLayout.of(32, [([9], at, 1), ([4], at, 2)])
        for layer in cache.begin_step(layout):
            mx.eval(layer.attend(q, k, k))

    for at in range(3):
        assert peak_bytes(lambda at=at: step(at)) < size / 4, "a step allocates a second pool"


def in_one_piece(model, tokens):
    """The logits of a prompt alone, without pages: [L, V]."""
    return model(tokens[None], 0, model.create_kv_cache())[0]


class Paged:
    """Requests that go through a model in steps, with their blocks in no order."""

    def __init__(self, llm, model, prompts, block_size):
        self.llm, self.model, self.prompts = llm, model, prompts
        self.ids, num_blocks = scattered_blocks(2, block_size, [len(p) for p in prompts])
        self.cache = llm.PagedKvCache(model.config, num_blocks, block_size)
        self.block_size, self.done = block_size, [0] * len(prompts)

    def step(self, sizes, rows=None):
        """Compute sizes[r] more tokens of each request r: logits of all rows, or of `rows`."""
        parts, tokens = [], []
        for r, new in enumerate(sizes):
            if new:
                parts.append((self.ids[r], self.done[r], new))
                tokens.append(self.prompts[r][self.done[r] : self.done[r] + new])
                self.done[r] += new
        layout = self.llm.StepLayout.of(self.block_size, parts)
        layers = self.cache.begin_step(layout)
        logits = self.model(mx.concatenate(tokens)[:, None], layout.positions, layers, rows=rows)
        mx.eval(logits)
        return logits


SCHEDULES = {
    "all at once": [[40, 17, 33]],
    "one after the other": [[40, 0, 0], [0, 17, 0], [0, 0, 33]],
    "chunks beside decodes": [[32, 0, 7], [1, 10, 1], [1, 0, 24], [5, 1, 1], [1, 6, 0]],
    "token by token": [[1, 1, 1]] * 17 + [[1, 0, 1]] * 16 + [[1, 0, 0]] * 7,
}


def assert_schedule(llm, model, block_size, schedule, tolerance=F32_MODEL):
    prompts = [random_tokens(r, n) for r, n in enumerate((40, 17, 33))]
    paged, got = Paged(llm, model, prompts, block_size), [[] for _ in prompts]
    for sizes in SCHEDULES[schedule]:
        logits, first = paged.step(sizes), 0
        for r, new in enumerate(sizes):
            got[r].append(logits[first : first + new, 0])
            first += new
    assert paged.done == [40, 17, 33]
    for r, prompt in enumerate(prompts):
        want = in_one_piece(model, prompt)
        mine = mx.concatenate(got[r])
        assert_close(mine, want, tolerance, what=f"logits of request {r}", legend="[L, V]")
        assert mx.array_equal(mx.argmax(mine, -1), mx.argmax(want, -1))


@pytest.mark.task("3.2.2")
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("block_size", [1, 3, 16, 32, 64])
def test_pages_do_not_change_logits(llm, schedule, block_size):
    assert_schedule(llm, toy_model(llm), block_size, schedule)


@pytest.mark.task("3.2.2")
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_pages_do_not_change_logits_of_qwen2(llm, schedule):
    assert_schedule(llm, toy_model(llm, QWEN2), 4, schedule)


@pytest.mark.task("3.2.2")
@pytest.mark.parametrize(
    "rows", [[], [0], [6], [5, 6, 0], [2, 3, 4], [8, 0, 1, 2, 3, 4, 5, 6, 7], [3, 3], [*range(9)]]
)
def test_rows_whose_logits_are_wanted(llm, rows):
    prompts = [random_tokens(r, n) for r, n in enumerate((20, 9))]
    model, ways = toy_model(llm), []
    for wanted in (None, rows):
        paged = Paged(llm, model, prompts, 4)
        paged.step([13, 7])
        ways.append((paged.step([7, 2], wanted), paged))
    (everything, whole), (got, some) = ways
    assert_close(got, as_float64(everything)[rows], F32_MODEL, legend="[rows, L, V]", dtype=mx.float32)
    some.cache.materialize()
    for i in range(2):
        # Rows that nobody asks for are stored all the same.
        assert_close(some.cache.keys[i], whole.cache.keys[i], F32_MODEL, what=f"keys of layer {i}")
        assert_close(some.cache.values[i], whole.cache.values[i], F32_MODEL, what=f"values of layer {i}")


@pytest.mark.task("3.2.2")
@pytest.mark.parametrize("rows", [[], [2], [2, 0], [0, 1, 2]])
@pytest.mark.parametrize("keep", [None, 1, 0])
def test_rows_of_a_batch_without_pages(llm, rows, keep):
    model, tokens = toy_model(llm), random_tokens(4, 3, 5)
    want = as_float64(model(tokens, logits_to_keep=keep))[rows]
    assert_close(model(tokens, 0, None, keep, rows), want, F32_MODEL, legend="[rows, L, V]")
    cache = model.create_kv_cache()
    model(tokens[:, :3], 0, cache, 0)
    got = model(tokens[:, 3:], 3, cache, keep, rows)
    assert_close(got, want if keep is not None else want[:, 3:], F32_MODEL, what="with a cache")
    batch = [llm.BatchingKvCache(3) for _ in cache]
    for r, length in enumerate((2, 4, 3)):
        one = model.create_kv_cache()
        model(tokens[r : r + 1, :length], 0, one)
        for layer, prefilled in zip(batch, one, strict=True):
            layer.add_request(prefilled)
    one_more = mx.stack([tokens[r, n] for r, n in enumerate((2, 4, 3))])[:, None]
    want = [as_float64(model(tokens[r : r + 1, : n + 1]))[:, -1:] for r, n in enumerate((2, 4, 3))]
    got = model(one_more, [2, 4, 3], batch, None, rows)
    target = np.concatenate([want[r] for r in rows]) if rows else np.zeros((0, 1, 258))
    assert_close(got, target, F32_MODEL, what="rows of their own lengths")


@pytest.mark.task("3.2.2")
def test_the_head_runs_on_the_rows_that_are_wanted(llm):
    model, rows = toy_model(llm), []
    head = model.embed_tokens.as_linear
    model.embed_tokens.as_linear = lambda x: rows.append(x.shape) or head(x)
    mlp = model.layers[-1].mlp

    class Counted:
        def __call__(self, x):
            rows.append(x.shape)
            return mlp(x)

    model.layers[-1].mlp = Counted()
    Paged(llm, model, [random_tokens(1, 30), random_tokens(2, 5)], 4).step([30, 5], [29, 34])
    assert rows == [(2, 1, 64), (2, 1, 64)], "the last feed-forward network and the head"


@pytest.mark.task("3.2.3")
@pytest.mark.parametrize("block_size", [1, 3, 16, 32, 64])
@pytest.mark.parametrize(("lengths", "sizes"), STEPS)
def test_paged_attention_kernel(llm, kernels, lengths, sizes, block_size):
    step = Requests(llm, lengths, sizes, block_size, D=16)
    at = step.layout
    where = (at.query_starts, at.lengths, at.block_tables)
    got = kernels.paged_attention(step.new_q, step.keys, step.values, *where, 0.25)
    assert_close(got, step.want(), F32, dtype=mx.float32, legend="[T, 1, H * D]")


@pytest.mark.task("3.2.3")
@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
def test_paged_attention_kernel_of_16_bits(llm, kernels, dtype):
    step = Requests(llm, [70, 31, 64, 9], [6, 1, 64, 1], 32, D=64, dtype=dtype)
    at = step.layout
    where = (at.query_starts, at.lengths, at.block_tables)
    got = kernels.paged_attention(step.new_q, step.keys, step.values, *where, 0.125)
    assert_close(got, step.want(), rounding(dtype, 1), dtype=dtype, legend="[T, 1, H * D]")


@pytest.mark.task("3.2.3")
@pytest.mark.parametrize("block_size", [32, 64, 96])
def test_pages_of_whole_blocks_give_the_same_bits_as_a_row_of_its_own(llm, kernels, block_size):
    step = Requests(llm, [200], [50], block_size, D=64)
    at = step.layout
    where = (at.query_starts, at.lengths, at.block_tables)
    got = kernels.paged_attention(step.new_q, step.keys, step.values, *where, 0.125)
    alone = (step.q[0][None, :, 150:], step.k[0][None], step.v[0][None])
    want = kernels.attention(*alone, 200, True, 0.125, True)
    assert_close(got[:, 0], want[0], EXACT, legend="[T, H * D]")


@pytest.mark.task("3.2.3")
def test_the_largest_items_come_first(probe):
    # A chunk of 30 rows behind 500 tokens, between decodes of 40 and 2000: 4 heads share a kv head, so that
    # an item has at most 6 tokens.
    starts, lengths = np.array([0, 1, 31, 32], np.int32), np.array([40, 530, 2000], np.int32)
    got = np.full((20, 3), -1, np.int64)
    probe("attention").probe_items(starts, lengths, 3, 4, 1, got)
    items = [tuple(item) for item in got.tolist() if item[0] >= 0]
    chunk = [(1, 501 + first, 6) for first in (24, 18, 12, 6, 0)]
    assert sorted(items) == sorted([(0, 40, 1), (2, 2000, 1), *chunk]), (
        "request, what its first token sees, tokens"
    )
    assert items[:5] == chunk, "six tokens that see 500 are more work than one that sees 2000"
    assert items[5:] == [(2, 2000, 1), (0, 40, 1)]


@pytest.mark.task("3.2.4")
@pytest.mark.parametrize("block_size", [1, 3, 16])
@pytest.mark.parametrize(("lengths", "sizes"), [([1], [1]), ([40], [1]), ([9, 5, 33], [2, 5, 1])])
def test_paged_attention_metal(llm, metal, lengths, sizes, block_size):
    step = Requests(llm, lengths, sizes, block_size, D=64)
    got = llm.paged_attention_metal(step.new_q, step.keys, step.values, step.layout)
    assert_close(got, step.want(), F32, dtype=mx.float32, legend="[T, 1, H * D]")


@pytest.mark.task("3.2.4")
@pytest.mark.parametrize(("H", "G", "D"), [(1, 1, 4), (6, 1, 24), (12, 3, 80), (4, 2, 128)])
def test_paged_attention_metal_of_other_heads(llm, metal, H, G, D):
    step = Requests(llm, [9, 20], [1, 2], H=H, G=G, D=D)
    got = llm.paged_attention_metal(step.new_q, step.keys, step.values, step.layout, 0.3)
    step.q = [q * (0.3 * math.sqrt(D)) for q in step.q]
    assert_close(got, step.want(), rounding(mx.float32, 400), legend="[T, 1, H * D]")


@pytest.mark.task("3.2.4")
@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
def test_paged_attention_metal_of_16_bits(llm, metal, dtype):
    step = Requests(llm, [70, 5], [1, 2], 16, D=64, dtype=dtype)
    got = llm.paged_attention_metal(step.new_q, step.keys, step.values, step.layout)
    assert_close(got, step.want(), rounding(dtype, 1), dtype=dtype, legend="[T, 1, H * D]")


@pytest.mark.task("3.2.4")
def test_paged_attention_metal_rejects_what_it_cannot_do(llm, metal, monkeypatch):
    layout = llm.StepLayout.of(4, [([0], 0, 1)])
    pool = mx.zeros((1, 2, 4, 8))
    with pytest.raises(UserError):
        llm.paged_attention_metal(mx.zeros((1, 3, 1, 8)), pool, pool, layout)
    monkeypatch.setattr(mx.metal, "is_available", lambda: False)
    with pytest.raises(UserError):
        llm.paged_attention_metal(mx.zeros((1, 4, 1, 8)), pool, pool, layout)
