"""Day 2.6: a batch of caches in place."""

import random

import mlx.core as mx
import numpy as np
import pytest
from tests.helpers.batching import batch_of, prefilled
from tests.helpers.tolerance import EXACT, active_bytes, assert_close
from tests.helpers.toy import random_array

T, F = True, False


class Rows:
    """What a batch cache must hold, as one NumPy array per row; values are the negated keys."""

    def __init__(self):
        self.rows = []

    def add(self, cache):
        self.rows.append(np.array(cache.fetch()[0])[0])

    def remove(self, row):
        self.rows[row] = self.rows[-1]
        self.rows.pop()

    def append(self, batch, key):
        got_key, got_value = batch.update_and_fetch(key, -key)
        self.rows = [np.concatenate([r, n], axis=1) for r, n in zip(self.rows, np.array(key), strict=True)]
        lengths = [row.shape[1] for row in self.rows]
        assert batch.offset == lengths, "the tokens stored by row"
        want = (len(lengths), 2, max(lengths), 4)
        assert got_key.shape == got_value.shape == want, "[B, G, S, D], S of the longest row"
        for i, row in enumerate(self.rows):
            end = lengths[i]
            assert_close(got_key[i, :, :end], row, EXACT, legend="[G, S, D]", what=f"keys of row {i}")
            assert_close(got_value[i, :, :end], -row, EXACT, legend="[G, S, D]", what=f"values of row {i}")


@pytest.mark.task("2.6.1")
def test_batch_of_three_lengths(llm):
    batch, rows = llm.BatchingKvCache(4), Rows()
    for i, length in enumerate([2, 5, 3]):
        cache = prefilled(llm, length, seed=i)
        assert batch.add_request(cache) == i
        rows.add(cache)
    assert batch.offset == [2, 5, 3]
    want = [[T, T, T, F, F, F], [T, T, T, T, T, T], [T, T, T, T, F, F]]
    got = batch.attention_mask(1)
    assert got.shape == (3, 1, 1, 6)
    assert got[:, 0, 0].tolist() == want
    rows.append(batch, random_array(10, 3, 2, 1, 4))
    assert batch.offset == [3, 6, 4]


@pytest.mark.task("2.6.1")
def test_batch_masks_several_new_tokens(llm):
    got = batch_of(llm, [1, 3]).attention_mask(2)
    want = [
        [[T, T, F, F, F], [T, T, T, F, F]],
        [[T, T, T, T, F], [T, T, T, T, T]],
    ]
    what = "the mask of 2 new tokens behind 1 and 3 stored ones, 1 where a token is seen"
    assert_close(got, np.array(want)[:, None], EXACT, legend="[B, 1, L, S]", what=what)


@pytest.mark.task("2.6.1")
@pytest.mark.parametrize("leaver", [0, 1, 2])
def test_last_row_takes_the_place_of_one_that_leaves(llm, leaver):
    batch, rows = llm.BatchingKvCache(3), Rows()
    for i, length in enumerate([2, 5, 3]):
        cache = prefilled(llm, length, seed=i)
        batch.add_request(cache)
        rows.add(cache)
    rows.append(batch, random_array(10, 3, 2, 1, 4))
    batch.remove_request(leaver)
    rows.remove(leaver)
    rows.append(batch, random_array(11, 2, 2, 1, 4))
    newcomer = prefilled(llm, 4, seed=9)
    assert batch.add_request(newcomer) == 2
    rows.add(newcomer)
    rows.append(batch, random_array(12, 3, 2, 1, 4))


@pytest.mark.task("2.6.1")
@pytest.mark.parametrize("seed", range(4))
def test_batch_through_a_long_random_life(llm, seed):
    rng = random.Random(seed)
    batch, rows = llm.BatchingKvCache(5), Rows()
    for step in range(120):
        if len(rows.rows) < 5 and rng.random() < 0.3:
            cache = prefilled(llm, rng.choice([1, 3, 30, 70]), seed=step)
            assert batch.add_request(cache) == len(rows.rows)
            rows.add(cache)
        elif rows.rows and rng.random() < 0.15:
            row = rng.randrange(len(rows.rows))
            batch.remove_request(row)
            rows.remove(row)
        if rows.rows:
            rows.append(batch, random_array(step, len(rows.rows), 2, rng.choice([1, 1, 1, 3]), 4))


@pytest.mark.task("2.6.1")
def test_batch_does_not_touch_the_cache_that_it_copies(llm):
    batch, cache = llm.BatchingKvCache(2), prefilled(llm, 3)
    want = mx.array(cache.fetch()[0])
    batch.add_request(cache)
    batch.update_and_fetch(mx.ones((1, 2, 1, 4)), mx.ones((1, 2, 1, 4)))
    assert_close(cache.fetch()[0], want, EXACT)
    cache.release()
    assert_close(
        batch.update_and_fetch(mx.ones((1, 2, 1, 4)), mx.ones((1, 2, 1, 4)))[0][:, :, :3], want, EXACT
    )


@pytest.mark.task("2.6.1")
def test_batch_keeps_the_dtype(llm):
    batch = batch_of(llm, [3], dtype=mx.bfloat16)
    new = random_array(1, 1, 2, 1, 4, dtype=mx.bfloat16)
    for stored in batch.update_and_fetch(new, new):
        assert_close(stored[:, :, 3:], new, EXACT, dtype=mx.bfloat16)


@pytest.mark.task("2.6.1")
def test_batch_rejects_what_it_cannot_hold(llm):
    full = batch_of(llm, [2, 5])
    with pytest.raises(ValueError):
        full.add_request(prefilled(llm, 1))
    short = batch_of(llm, [2], rows=3, max_seq_len=5)
    with pytest.raises(ValueError):
        short.add_request(llm.TinyKvFullCache())
    with pytest.raises(ValueError):
        short.add_request(prefilled(llm, 6))
    assert short.offset == [2]
    assert short.add_request(prefilled(llm, 5)) == 1


@pytest.mark.task("2.6.1")
@pytest.mark.parametrize("row", [-1, 2, 7])
def test_batch_rejects_a_row_that_is_not_active(llm, row):
    batch = batch_of(llm, [2, 5], rows=8)
    with pytest.raises(ValueError):
        batch.remove_request(row)
    assert batch.offset == [2, 5]


@pytest.mark.task("2.6.1")
def test_an_append_makes_a_new_list_of_offsets(llm):
    """The model hands the offsets of layer 0 to every layer: they must not change while it computes."""
    batch = batch_of(llm, [2, 5])
    before = batch.offset
    batch.update_and_fetch(mx.ones((2, 2, 1, 4)), mx.ones((2, 2, 1, 4)))
    assert batch.offset == [3, 6]
    assert before == [2, 5], (
        f"the list of offsets read before the append is {before} now: it was changed in place, so the layers "
        "behind this one would rotate their keys at other positions"
    )


@pytest.mark.task("2.6.1")
def test_batch_rejects_an_update_that_does_not_fit(llm):
    batch = batch_of(llm, [2, 5], rows=4, max_seq_len=6)
    for rows in (1, 3, 4):
        with pytest.raises(ValueError):
            batch.update_and_fetch(mx.ones((rows, 2, 1, 4)), mx.ones((rows, 2, 1, 4)))
    one_more = mx.ones((2, 2, 1, 4))
    batch.update_and_fetch(one_more, one_more)
    assert batch.offset == [3, 6]
    with pytest.raises(ValueError):
        batch.update_and_fetch(one_more, one_more)
    assert batch.offset == [3, 6]


@pytest.mark.task("2.6.1")
def test_batch_gives_its_memory_back(llm):
    before = active_bytes()
    batch = batch_of(llm, [500, 400], D=64)
    mx.eval(batch.update_and_fetch(mx.ones((2, 2, 1, 64)), mx.ones((2, 2, 1, 64))))
    assert active_bytes() - before > 2 * 2 * 400 * 64 * 4
    batch.release()
    assert active_bytes() - before < 1024
    assert batch.offset == [], "no request is left, and no length"
    batch.release()
    assert batch.add_request(prefilled(llm, 3)) == 0
