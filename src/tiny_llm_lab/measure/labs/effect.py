"""What the rounds of a lab show: a metric is higher, lower, the same or in a range, or it is noise."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf
from typing import Final, Literal

from tiny_llm_lab.measure.bench.report import Ratio, Row, Samples
from tiny_llm_lab.measure.labs.result import Claim, judged
from tiny_llm_lab.runtime.console.talk import plural

Kind = Literal["higher", "lower", "none", "unclear"]
LEAST_ROUNDS: Final = 3  # with fewer we can't tell an effect from noise
LEAST: Final = 0.05  # medians closer than this are called equal, however small the spread
MOST: Final = 0.15  # and rounds that are further from 1 than this allow no such word


@dataclass(frozen=True)
class Effect:
    """How a variant's metric compares with a baseline's, by the ratios of all rounds."""

    name: str  # of the metric
    kind: Kind
    ratio: Ratio | None  # variant / baseline; None where a round has no value
    ratios: Samples = ()  # of each round

    @property
    def factor(self) -> float | None:
        """By how much, as a number of 1 or more."""
        if self.ratio is None or not self.ratio.value:
            return None
        return max(self.ratio.value, 1 / self.ratio.value)

    def is_(self, kind: Kind) -> bool | None:
        """Whether the effect is `kind`; None if the rounds don't show it."""
        return None if self.kind == "unclear" else self.kind == kind

    def __str__(self) -> str:
        if self.ratio is None:
            return f"{self.name} could not be compared"
        if len(self.ratios) < LEAST_ROUNDS:
            rounds = plural(len(self.ratios), "round")
            return f"{self.name} is {self.ratio.value:.2f} times the baseline's in {rounds}, too few to tell"
        low, high = self.ratio.low, self.ratio.high
        spread = f" (variant / baseline {low:.2f} to {high:.2f})" if low != high else " (in every round)"
        if self.kind == "unclear":
            return f"{self.name} varies too much to tell{spread}"
        if self.kind == "none":
            return f"{self.name} did not change{spread}"
        return f"{self.name} is {self.factor:.2f} times {self.kind}{spread}"


def effect_of(name: str, variant: Row, baseline: Row, key: str) -> Effect:
    """An effect needs `LEAST_ROUNDS` with ratios on one side of 1, and medians `LEAST` apart.

    A round's variants run in turns, so a busy minute slows both, and only their ratio counts. No effect
    needs all rounds within `MOST` of 1, on both sides of it or with closer medians. Else it is unclear.
    """
    ratio = Ratio.of(name, variant.samples[key], baseline.samples[key])
    if ratio is None:
        return Effect(name, "unclear", None)
    over, under = ([each for each in row.samples[key] if each is not None] for row in (variant, baseline))
    kind = "unclear" if len(over) < LEAST_ROUNDS else _kind(ratio)
    return Effect(name, kind, ratio, by_round(over, under))


def _kind(ratio: Ratio) -> Kind:
    if ratio.low > 1 and ratio.value >= 1 + LEAST:
        return "higher"
    if ratio.high < 1 and ratio.value <= 1 - LEAST:
        return "lower"
    is_even = ratio.low <= 1 <= ratio.high or abs(ratio.value - 1) < LEAST
    return "none" if is_even and ratio.low >= 1 - MOST and ratio.high <= 1 + MOST else "unclear"


def claimed(text: str, effect: Effect, kind: Kind) -> Claim:
    """The claim that the effect is `kind`."""
    return judged(text, effect.is_(kind), str(effect))


def by_round(over: Samples, under: Samples) -> list[float | None]:
    """`over` / `under` of each round; None where a sample is missing or the divisor is 0."""
    return [a / b if a is not None and b else None for a, b in zip(over, under, strict=True)]


def within(samples: Samples, least: float = -inf, most: float = inf) -> bool | None:
    """Whether every round is in a range: True, or False where all miss it on one side.

    None where they differ about it, where one has no value, or where there are fewer than `LEAST_ROUNDS`.
    """
    values = [value for value in samples if value is not None]
    if len(values) < max(LEAST_ROUNDS, len(samples)):
        return None
    low, high = min(values), max(values)
    return True if least <= low and high <= most else False if high < least or low > most else None


def every(parts: Iterable[bool | None]) -> bool | None:
    """Whether all parts hold: False as soon as one does not, else None where one is unknown."""
    known = list(parts)
    return False if False in known else None if None in known else True


def setting(variant: str) -> str:
    """A server's variant as the beginning of a sentence."""
    if variant.isdigit():
        return f"With chunks of {variant}"
    return "Without chunks" if variant == "off" else f"With {variant}"


def in_words(longest: Effect, first: Effect, throughput: Effect) -> str:
    """What smaller chunks do to pauses, first tokens and throughput, without numbers and metrics."""
    words = (
        (longest, "the longest pauses between tokens are", ("longer", "shorter", "as long")),
        (first, "first tokens come", ("later", "sooner", "at the same time")),
        (throughput, "tokens are made", ("faster", "slower", "at the same speed")),
    )
    kinds: tuple[Kind, ...] = ("higher", "lower", "none")
    known = [f"{what} {how[kinds.index(each.kind)]}" for each, what, how in words if each.kind in kinds]
    noisy = [f"{each.name} varies too much to tell" for each, *_ in words if each.kind == "unclear"]
    sentences = [", ".join(known), *noisy] if known else noisy
    return f"With the smaller chunks {'; '.join(sentences)}."
