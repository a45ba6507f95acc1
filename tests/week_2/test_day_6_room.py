"""Day 2.6: when a batch of caches allocates, and how much."""

import mlx.core as mx
import pytest
from tests.helpers.batching import batch_of, prefilled
from tests.helpers.tolerance import active_bytes, peak_bytes
from tests.helpers.toy import random_array

ROW = 2 * 2 * 300 * 64 * 4  # bytes of keys and values of a row of 300 tokens in the tests below


@pytest.mark.task("2.6.1")
@pytest.mark.parametrize("max_seq_len", [512, 100_000])
def test_decode_step_allocates_nothing_that_grows(llm, max_seq_len):
    batch = batch_of(llm, [300] * 8, max_seq_len=max_seq_len, D=64)
    new = random_array(1, 8, 2, 1, 64)
    mx.eval(new)
    steps = [peak_bytes(lambda: batch.update_and_fetch(new, new)) for _ in range(10)]
    # One step in ten may make room. 8 rows that are copied would be 8 * ROW.
    assert sorted(steps)[-2] < ROW / 2


@pytest.mark.task("2.6.1")
def test_a_join_makes_room_for_the_next_token_as_well(llm):
    """Who joins decodes at once: storage that is full to the last place would grow twice in a row."""
    batch = batch_of(llm, [20] * 7, rows=8, D=64)
    batch.add_request(prefilled(llm, 320, D=64))
    new = random_array(1, 8, 2, 1, 64)
    mx.eval(new)
    assert peak_bytes(lambda: batch.update_and_fetch(new, new)) < ROW / 2


@pytest.mark.task("2.6.1")
@pytest.mark.parametrize(("rows", "stored", "new"), [(8, 200, 101), (3, 300, 1), (5, 300, 1), (6, 300, 1)])
def test_there_is_no_room_beyond_max_seq_len_and_the_requests(llm, rows, stored, new):
    before = active_bytes()
    batch = batch_of(llm, [stored] * rows, max_seq_len=302, D=64)
    added = random_array(1, rows, 2, new, 64)
    mx.eval(batch.update_and_fetch(added, added))
    del added
    most = rows * 2 * 2 * 302 * 64 * 4
    assert active_bytes() - before <= most + 1024, f"{rows} rows of 302 tokens and no more"


@pytest.mark.task("2.6.1")
def test_join_allocates_about_one_row(llm):
    batch = batch_of(llm, [300] * 7, rows=8, D=64)
    newcomer = prefilled(llm, 300, D=64)
    newcomer.materialize()
    assert peak_bytes(lambda: batch.add_request(newcomer) and None) < 2 * ROW
    new = mx.ones((8, 2, 1, 64))
    mx.eval(new)
    assert peak_bytes(lambda: batch.update_and_fetch(new, new)) < ROW / 2, "the join was only put off"


@pytest.mark.task("2.6.1")
@pytest.mark.parametrize("row", [0, 3, 7])
def test_leave_allocates_about_one_row(llm, row):
    batch = batch_of(llm, [300] * 8, D=64)
    new = mx.ones((7, 2, 1, 64))
    mx.eval(new)
    assert peak_bytes(lambda: batch.remove_request(row)) < 2 * ROW
    assert peak_bytes(lambda: batch.update_and_fetch(new, new)) < ROW / 2, "the move was only put off"
