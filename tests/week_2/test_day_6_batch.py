"""Day 2.6: a batch of caches in place: its room, rows of different lengths, calls in any order."""

import mlx.core as mx
import pytest
from tests.helpers.any_order import check_in_any_order
from tests.helpers.any_order_caches import AnyBatch
from tests.helpers.batching import batch_of, computed_rows, prefilled
from tests.helpers.tolerance import EXACT, F32_MODEL, active_bytes, assert_close, peak_bytes
from tests.helpers.toy import QWEN2, QWEN3, packed_model, random_array, random_tokens, toy_model

from tiny_llm_lab.types import Wanted

pytestmark = pytest.mark.task("2.6.1")

T, F = True, False


def test_batch_of_three_lengths(llm):
    batch = batch_of(llm, [2, 5, 3], rows=4)
    assert batch.offset == [2, 5, 3], "the tokens stored by row"
    want = [[T, T, T, F, F, F], [T, T, T, T, T, T], [T, T, T, T, F, F]]
    got = batch.attention_mask(1)
    assert got.shape == (3, 1, 1, 6)
    assert got[:, 0, 0].tolist() == want
    key = random_array(10, 3, 2, 1, 4)
    keys, values = batch.update_and_fetch(key, -key)
    assert batch.offset == [3, 6, 4]
    assert keys.shape == values.shape == (3, 2, 6, 4), "[B, G, S, D], S of the longest row"
    for row, length in enumerate([2, 5, 3]):
        own = mx.concatenate([prefilled(llm, length, seed=row).fetch()[0][0], key[row]], axis=1)
        assert_close(keys[row, :, : length + 1], own, EXACT, legend="[G, S, D]", what=f"keys of row {row}")
        assert_close(
            values[row, :, : length + 1], -own, EXACT, legend="[G, S, D]", what=f"values of row {row}"
        )


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


def test_batch_keeps_the_dtype(llm):
    batch = batch_of(llm, [3], dtype=mx.bfloat16)
    new = random_array(1, 1, 2, 1, 4, dtype=mx.bfloat16)
    for stored in batch.update_and_fetch(new, new):
        assert_close(stored[:, :, 3:], new, EXACT, dtype=mx.bfloat16)


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


# When a batch of caches allocates, and how much


ROW = 2 * 2 * 300 * 64 * 4  # bytes of keys and values of a row of 300 tokens in the tests below


@pytest.mark.parametrize("max_seq_len", [512, 100_000])
def test_decode_step_allocates_nothing_that_grows(llm, max_seq_len):
    batch = batch_of(llm, [300] * 8, max_seq_len=max_seq_len, D=64)
    new = random_array(1, 8, 2, 1, 64)
    mx.eval(new)
    steps = [peak_bytes(lambda: batch.update_and_fetch(new, new)) for _ in range(10)]
    # One step in ten may make room. 8 rows that are copied would be 8 * ROW.
    assert sorted(steps)[-2] < ROW / 2


def test_a_join_makes_room_for_the_next_token_as_well(llm):
    """Who joins decodes at once: storage that is full to the last place would grow twice in a row."""
    batch = batch_of(llm, [20] * 7, rows=8, D=64)
    batch.add_request(prefilled(llm, 320, D=64))
    new = random_array(1, 8, 2, 1, 64)
    mx.eval(new)
    assert peak_bytes(lambda: batch.update_and_fetch(new, new)) < ROW / 2


@pytest.mark.parametrize(("rows", "stored", "new"), [(8, 200, 101), (3, 300, 1), (5, 300, 1), (6, 300, 1)])
def test_there_is_no_room_beyond_max_seq_len_and_the_requests(llm, rows, stored, new):
    before = active_bytes()
    batch = batch_of(llm, [stored] * rows, max_seq_len=302, D=64)
    added = random_array(1, rows, 2, new, 64)
    mx.eval(batch.update_and_fetch(added, added))
    del added
    most = rows * 2 * 2 * 302 * 64 * 4
    assert active_bytes() - before <= most + 1024, f"{rows} rows of 302 tokens and no more"


def test_join_allocates_about_one_row(llm):
    batch = batch_of(llm, [300] * 7, rows=8, D=64)
    newcomer = prefilled(llm, 300, D=64)
    newcomer.materialize()
    assert peak_bytes(lambda: batch.add_request(newcomer) and None) < 2 * ROW
    new = mx.ones((8, 2, 1, 64))
    mx.eval(new)
    assert peak_bytes(lambda: batch.update_and_fetch(new, new)) < ROW / 2, "the join was only put off"


@pytest.mark.parametrize("row", [0, 3, 7])
def test_leave_allocates_about_one_row(llm, row):
    batch = batch_of(llm, [300] * 8, D=64)
    new = mx.ones((7, 2, 1, 64))
    mx.eval(new)
    assert peak_bytes(lambda: batch.remove_request(row)) < 2 * ROW
    assert peak_bytes(lambda: batch.update_and_fetch(new, new)) < ROW / 2, "the move was only put off"


# Rows of different lengths through the model


def assert_rows_as_alone(llm, model, lengths, sizes):
    """Rows of `lengths` tokens that go on together, by `sizes` tokens a step, have their own logits."""
    tokens = [random_tokens(30 + i, 1, length + sum(sizes)) for i, length in enumerate(lengths)]
    prompts = [row[:, :length] for row, length in zip(tokens, lengths, strict=True)]
    batch = computed_rows(llm, model, prompts)
    for step, size in enumerate(sizes):
        starts = [length + sum(sizes[:step]) for length in lengths]
        new = mx.concatenate([t[:, s : s + size] for t, s in zip(tokens, starts, strict=True)])
        got = model(new, starts, batch, wanted=Wanted(last=1))
        for row, start in enumerate(starts):
            want = model(tokens[row][:, : start + size])[:, -1:]
            what = f"step {step}, row {row}"
            assert_close(got[row : row + 1], want, F32_MODEL, legend="[B, 1, V]", what=what)


@pytest.mark.parametrize("config", [QWEN3, QWEN2], ids=lambda config: config.model_type)
def test_model_decodes_rows_of_different_lengths_together(llm, config):
    assert_rows_as_alone(llm, toy_model(llm, config), [9, 1, 5], [1, 1, 3])


@pytest.mark.parametrize("odd_layer", [None, 0, 1])
def test_rows_of_different_lengths_on_the_kernels(llm, kernels_on, odd_layer):
    assert_rows_as_alone(llm, packed_model(llm, odd_layer), [9, 1, 70], [1, 1, 1])


def test_model_rejects_offsets_that_the_batch_does_not_have(llm):
    model = toy_model(llm)
    batch = computed_rows(llm, model, [random_tokens(length, 1, length) for length in (4, 2)])
    with pytest.raises(ValueError):
        model(random_tokens(1, 2, 1), [2, 4], batch)
    assert model(random_tokens(1, 2, 1), [4, 2], batch).shape == (2, 1, 258)


# A batch of caches under calls in any order


def test_a_batch_in_any_order(llm):
    check_in_any_order(lambda: AnyBatch(llm), examples=25)
