"""What counts as an effect, on samples made up for it."""

import pytest
from tests.helpers.lab_rows import row

from tiny_llm_lab.measure.labs.effect import effect_of, within


@pytest.mark.parametrize(
    ("variant", "kind", "words"),
    [
        ((2.0, 2.2, 1.8), "higher", "x is 2.00 times higher (variant / baseline 1.80 to 2.20)"),
        ((0.5, 0.4, 0.6), "lower", "x is 2.00 times lower (variant / baseline 0.40 to 0.60)"),
        ((1.0, 1.1, 0.9), "none", "x did not change (variant / baseline 0.90 to 1.10)"),
        ((1.02, 1.03, 1.01), "none", "x did not change (variant / baseline 1.01 to 1.03)"),
        ((0.5, 1.0, 2.0), "unclear", "x varies too much to tell (variant / baseline 0.50 to 2.00)"),
        ((1.0, None, 1.0), "unclear", "x could not be compared"),
        ((2.0, 2.0), "unclear", "x is 2.00 times the baseline's in 2 rounds, too few to tell"),
        ((2.0,), "unclear", "x is 2.00 times the baseline's in 1 round, too few to tell"),
    ],
)
def test_an_effect_needs_all_of_three_rounds(variant, kind, words):
    effect = effect_of("x", row("b", x=variant), row("a", x=(1.0,) * len(variant)), "x")
    assert (effect.kind, str(effect)) == (kind, words)


@pytest.mark.parametrize(
    ("variant", "baseline", "kind"),
    [
        ((1.2, 1.3, 2.4), (1.0, 1.0, 2.0), "unclear"),  # 1.2 times in each round; the machine differs more
        ((0.8, 0.8, 1.6), (1.0, 1.0, 2.0), "unclear"),
        ((1.08, 1.1, 2.2), (1.0, 1.0, 2.0), "unclear"),  # nor is it no change: no round says that
        ((1.2, 1.3, 1.4), (1.0, 1.0, 1.1), "higher"),
        ((1.0, 1.0, 1.1), (1.2, 1.3, 1.4), "lower"),
    ],
)
def test_an_effect_is_larger_than_what_the_rounds_of_one_variant_differ_by(variant, baseline, kind):
    assert effect_of("x", row("b", x=variant), row("a", x=baseline), "x").kind == kind


@pytest.mark.parametrize(
    ("values", "is_within"),
    [
        ((2.0, 2.5, 3.0), True),
        ((1.0, 1.5, 1.9), False),
        ((3.1, 4.0, 5.0), False),
        ((1.9, 2.5, 2.6), None),
        ((1.0, 4.0, 4.0), None),
        ((2.5, None, 2.5), None),
        ((2.5, 2.5), None),
    ],
)
def test_a_range_holds_what_all_of_three_rounds_are_in(values, is_within):
    assert within(values, 2, 3) is is_within


def test_what_is_unclear_is_neither_confirmed_nor_refuted():
    base = row("a", x=1.0)
    effects = [effect_of("x", row("b", x=(value, 2.0, 2.0)), base, "x") for value in (0.5, 2.0)]
    assert [effect.is_("higher") for effect in effects] == [None, True]
    assert [effect.is_("none") for effect in effects] == [None, False]
