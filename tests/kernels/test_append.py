"""Keys and values are stored in place, but never under an array that something still holds."""

import mlx.core as mx
import numpy as np
import pytest
from tests.helpers.matrices import evaluated
from tests.helpers.toy import random_array


def written(stored, added, offset):
    want = np.array(stored)
    want[: added.shape[0], :, offset : offset + added.shape[2]] = np.array(added)
    return want


@pytest.mark.parametrize("held_as", ["the array itself", "a slice", "an operator to come"])
def test_what_is_held_does_not_change(k, held_as):
    stored, added = evaluated(random_array(1, 3, 2, 9, 8), random_array(2, 2, 2, 3, 8))
    want, before = written(stored, added, 4), np.array(stored)
    if held_as == "the array itself":
        held = stored
    elif held_as == "a slice":
        held, before = stored[1:], before[1:]
    else:
        held = mx.abs(stored)
        before = np.abs(before)
    new = k.append(stored, added, 4)
    if held_as != "the array itself":
        del stored
    mx.eval(new)
    np.testing.assert_array_equal(np.array(new), want)
    np.testing.assert_array_equal(np.array(held), before, f"{held_as} has changed")


def test_what_nothing_holds_is_not_copied(k):
    room = mx.zeros((1, 4, 4096, 64))
    added = mx.ones((1, 4, 1, 64))
    mx.eval(room, added)
    size = room.nbytes
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    for offset in range(8):
        room = k.append(room, added, offset)
        mx.eval(room)
    assert mx.get_peak_memory() - before < size / 2
    assert mx.array_equal(room[:, :, :9].sum(axis=(0, 1, 3)), mx.array([256.0] * 8 + [0.0])).item()


@pytest.mark.parametrize("new", [1, 2, 4])
def test_all_that_is_added_must_fit_and_not_only_its_beginning(k, new):
    room, added = mx.zeros((1, 1, 4, 2)), mx.ones((1, 1, new, 2))
    for offset in range(5):
        if offset + new <= 4:
            want = written(room, added, offset)
            np.testing.assert_array_equal(np.array(k.append(mx.array(room), added, offset)), want)
        else:
            with pytest.raises(ValueError, match="do not fit behind the stored ones"):
                k.append(room, added, offset)
