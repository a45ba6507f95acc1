"""Values of calls: what is kept of them, and when two differ."""

import math
from dataclasses import dataclass

import mlx.core as mx
import numpy as np
import pytest

from tiny_llm_lab.course.compare.values import difference, distance, kept, state_of


@dataclass
class Answer:
    text: str
    finish_time: float = 0.0
    waited_s: float = 0.0


def differs(wanted, got):
    found = difference(kept(wanted), kept(got))
    return f"{found.where}: {found.says}" if found else None


def test_rounding_is_no_difference_and_more_is():
    x = mx.random.normal((3, 4), key=mx.random.key(0))
    assert differs(x, x + 1e-6) is None
    assert differs(x.astype(mx.bfloat16), (x * 1.004).astype(mx.bfloat16)) is None
    wrong = np.array(x)
    wrong[2, 1] += 0.5
    assert "max |delta| 0.5 at [2, 1]" in str(differs(x, mx.array(wrong)))


@pytest.mark.parametrize(
    ("wanted", "got", "says"),
    [
        (mx.zeros((2, 3)), mx.zeros((3, 2)), "shape: the reference has [2, 3], yours [3, 2]"),
        (mx.zeros(2), mx.zeros(2, mx.int32), "dtype: the reference has float32, yours int32"),
        (mx.array([1, 2, 3]), mx.array([1, 2, 4]), "max |delta| 1 at [2]"),
        ([1, (2, 3)], [1, (2, 4)], "[1][1]: the reference has 3, yours 4"),
        ([1, 2], [1], "the reference has 2 elements, yours 1"),
        ({"a": 1}, {"b": 1}, "a: yours has none"),
        (True, False, "the reference has True, yours False"),
        (0.5, 0.25, "the reference has 0.5, yours 0.25"),
        (None, mx.zeros(2), "the reference has None, yours [2] float32"),
        (Answer("yes"), Answer("no"), "text: the reference has 'yes', yours 'no'"),
    ],
)
def test_what_is_said_of_a_difference(wanted, got, says):
    assert says in str(differs(wanted, got))


def test_private_fields_are_ones_own():
    assert differs({"a": 1, "_cache": 2}, {"a": 1}) is None
    assert "a: the reference has 1, yours 3" in str(differs({"_cache": 2, "a": 1}, {"_cache": 4, "a": 3}))


def test_a_distance_counts_what_is_allowed():
    x = mx.array([1.0, -4.0])
    for more, want in ((0.0, 0.0), (0.0001, 0.25), (0.0008, 2.0)):
        assert distance(kept(x), kept(x + more)) == pytest.approx(want, rel=0.01)
        assert distance(kept({"a": (1, x)}), kept({"a": (1, x + more)})) == pytest.approx(want, rel=0.01)
    assert distance(kept((1, x)), kept((2, x))) == math.inf, "numbers that are counted are not rounded"
    assert distance(kept(x), kept(mx.zeros(3))) == math.inf
    assert distance(kept((x, x)), kept((x,))) == math.inf


def test_equal_infinities_and_no_numbers_are_equal():
    x = mx.array([float("inf"), -float("inf"), float("nan")])
    assert differs(x, x) is None
    assert differs(x, mx.array([float("inf"), 0.0, float("nan")])) is not None
    assert differs(float("nan"), float("nan")) is None


def test_a_large_array_is_sampled_and_its_place_is_right():
    x = np.zeros((500, 1000), dtype=np.float32)
    x[250, 0] = 1.0
    assert "at [250, 0]" in str(differs(np.zeros_like(x), x))


def test_the_state_of_an_object_is_its_public_counters():
    class Cache:
        def __init__(self):
            self.offset, self._rows, self.keys, self.waited_s = 3, 4, mx.zeros(2), 1

    assert state_of(Cache()) == {"offset": 3}
