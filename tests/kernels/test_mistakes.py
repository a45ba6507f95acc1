"""The known mistakes still fit the kernels; mistakes.py tries them, which takes too long for here."""

from pathlib import Path

import pytest
from tests.kernels.mistakes import known_mistakes

MISTAKES = known_mistakes()


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.says)
def test_a_mistake_can_be_made(mistake, tmp_path):
    right = mistake.source().read_text(encoding="utf-8")
    assert right.count(mistake.find) == 1, f"{mistake.file} changed: {mistake.find!r} must occur once"
    mistake.make(tmp_path)
    assert (tmp_path / mistake.file).read_text(encoding="utf-8") != right
    name, _, function = mistake.tests.partition("::")
    assert f"def {function}(" in (Path(__file__).parent / name).read_text(encoding="utf-8")


def test_every_kernel_has_one():
    assert {mistake.file for mistake in MISTAKES} >= {
        "linear.cpp",
        "attention.cpp",
        "elementwise.cpp",
        "simd.h",
    }
