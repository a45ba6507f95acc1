"""The rule on made-up runs, whose verdict is known from how they were made."""

import random

import numpy as np
import pytest

from tiny_llm_lab.measure.diverge.compare import JUMP, compare
from tiny_llm_lab.measure.diverge.side import Recorded

V, TOLERANCE = 12, 0.01


def two_runs(a, noise):
    """A's logits of each step, and what B adds to them."""
    sides, answer = (Recorded([1]), Recorded([1])), tuple[int, ...]()
    for logits, added in zip(a, noise, strict=True):
        sides[0].by_answer[answer], sides[1].by_answer[answer] = logits, logits + added
        answer += (int(logits.argmax()),)
    return compare(*sides, TOLERANCE).judgement


def a_run(rng, margins):
    """Logits of size 10 whose best two differ by the margin of each step."""
    steps = []
    for margin in margins:
        logits = rng.uniform(-10, 5, V).astype(np.float32)
        first, second = rng.choice(V, 2, replace=False)
        logits[first], logits[second] = 10, 10 - margin
        steps.append(logits)
    return steps


def test_the_rule_on_random_runs():
    """The verdict worked out from how the runs were made, and not from what the code computes."""
    draw, seen = random.Random(3), set()
    for number in range(300):
        rng, last = np.random.default_rng(number), draw.randrange(1, 8)
        kind = draw.choice(["none", "noise", "tie", "large", "jump"])
        size = 0.0 if kind == "none" else 0.001
        margins = [1.0] * 8
        if kind in ("tie", "jump"):
            margins[last] = {"tie": 0.0012, "jump": 0.1}[kind]
        a = a_run(rng, margins)
        noise = [rng.uniform(0.5, 1, V).astype(np.float32) * size * rng.choice([-1, 1], V) for _ in a]
        second, first = np.argsort(a[last])[-2:]
        if kind in ("tie", "jump"):  # the best two change places
            push = margins[last] * 0.8
            noise[last][first], noise[last][second] = -push, push
        if kind == "large":
            noise[last][rng.integers(V)] += 0.3
        judged = two_runs(a, [each.astype(np.float32) for each in noise])
        want = {"none": "same", "noise": "rounding", "tie": "rounding", "large": "bug", "jump": "bug"}[kind]
        assert judged.verdict == want, (number, kind, judged)
        assert judged.at == (last if kind in ("tie", "jump") else None) or kind == "large"
        seen.add(kind)
    assert len(seen) == 5


def test_the_border_of_a_margin():
    """2 * JUMP times what was seen before is still rounding, and a little more is not."""
    before = 0.004
    for factor, want in ((0.98, "rounding"), (1.02, "bug")):
        margin = 2 * JUMP * before * factor
        a = [np.array([10, 1], np.float32), np.array([10, 10 - margin], np.float32)]
        push = margin / 2 + 0.0005
        noise = [np.array([before, 0], np.float32), np.array([-push, push], np.float32)]
        assert push < TOLERANCE * 10
        assert two_runs(a, noise).verdict == want


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite_is_a_bug(value):
    a = [np.array([10, 1], np.float32)]
    assert two_runs(a, [np.array([0, value], np.float32)]).verdict == "bug"
    a = [np.array([value, 1], np.float32)]  # both sides alike
    assert two_runs(a, [np.array([0, 0], np.float32)]).verdict == "bug"
