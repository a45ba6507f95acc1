"""Room for keys and values that is not filled, and that no attention reads."""

import mlx.core as mx
import numpy as np
import pytest
from tests.helpers.batching import computed_rows
from tests.helpers.tolerance import EXACT, F32_MODEL, assert_close, peak_bytes
from tests.helpers.toy import packed_model, random_array, random_tokens
from tests.week_2.conftest import kernels_on

from tiny_llm_lab.types import Wanted

__all__ = ["kernels_on"]


@pytest.mark.parametrize("used", [[], [0], [5], [3, 0, 5], [5, 5, 5]])
@pytest.mark.parametrize("room", [5, 64])
def test_grown_storage_begins_with_what_was_used(k, dtype, used, room):
    stored = random_array(1, 3, 2, 5, 4, dtype=dtype)
    grown = k.grow(stored, 4, room, used)
    assert grown.shape == (4, 2, room, 4) and grown.dtype == dtype
    for row, length in enumerate(used):
        assert_close(grown[row, :, :length], stored[row, :, :length], EXACT, what=f"row {row}")


def test_storage_of_any_strides(k):
    stored = random_array(2, 3, 5, 2, 8).transpose(0, 2, 1, 3)
    part = random_array(3, 6, 2, 9, 8)[::2, :, 2:7]
    for array in (stored, part):
        assert_close(k.grow(array, 3, 7, [5, 4, 1])[1, :, :4], array[1, :, :4], EXACT)


def test_what_an_append_is_written_to_may_have_grown(k):
    stored, added = random_array(4, 2, 2, 6, 4), random_array(5, 2, 2, 1, 4)
    got = k.append(k.grow(stored, 2, 12, [6, 3]), added, [6, 3])
    for row, length in enumerate([6, 3]):
        want = np.concatenate([np.array(stored)[row, :, :length], np.array(added)[row]], axis=1)
        assert_close(got[row, :, : length + 1], want, EXACT, what=f"row {row}")


def test_only_the_room_is_allocated(k):
    stored = random_array(6, 2, 2, 100, 64)
    mx.eval(stored)
    size = 8 * 2 * 1000 * 64 * 4
    assert size <= peak_bytes(lambda: k.grow(stored, 8, 1000, [100, 40])) < 1.05 * size


TOO_MUCH = [(1, 8, [2, 2]), (4, 8, [2, 2, 2]), (2, 8, [7]), (2, 3, [4]), (2, 8, [-1])]


@pytest.mark.parametrize(("rows", "room", "used"), TOO_MUCH)
def test_what_does_not_fit_is_refused(k, rows, room, used):
    with pytest.raises(ValueError):
        k.grow(random_array(7, 2, 2, 6, 4), rows, room, used)


def test_storage_has_four_dimensions(k):
    with pytest.raises(ValueError):
        k.grow(random_array(8, 2, 6, 4), 2, 8, [])


@pytest.mark.parametrize("odd_layer", [None, 0, 1])
def test_room_may_hold_any_numbers_or_none(llm, kernels_on, odd_layer):
    """Whether a layer is fused or not, and whether a row's room was another request's or is new."""
    model, lengths = packed_model(llm, odd_layer), [9, 1, 40]
    tokens = [random_tokens(60 + i, 1, length + 1) for i, length in enumerate(lengths)]
    batch = computed_rows(llm, model, [row[:, :-1] for row in tokens], 4)
    for whole in batch:
        for stored in (whole.keys, whole.values):
            for row, length in enumerate([*lengths, 0]):
                stored[row, :, length:] = mx.nan
    new = mx.concatenate([row[:, -1:] for row in tokens])
    got = model(new, lengths, batch, wanted=Wanted(last=1))
    for row, length in enumerate(lengths):
        want = model(tokens[row][:, : length + 1])[:, -1:]
        assert_close(got[row : row + 1], want, F32_MODEL, what=f"row {row}")
