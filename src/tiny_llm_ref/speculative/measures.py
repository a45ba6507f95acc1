"""What a gate of drafts measures: seconds of passes, and how often draft tokens are accepted."""

from collections.abc import Sequence
from itertools import accumulate
from operator import mul

# How far the newest pass moves the averages of a line, once there are more than its inverse.
_NEWEST = 1 / 128
# A pass counts as at most this many times the expected time, because a longer time has another cause. If one
# takes less than the inverse, what was measured before had another cause, and is forgotten.
_SLOWEST = 2.0
# The first passes differ by chance. This variance of sizes, divided by their number squared, hides it.
_VARIANCE = 8.0


class Line:
    """Seconds of a pass over x rows: fixed + each * x, by least squares."""

    def __init__(self) -> None:
        """No pass was measured. Sets num = 0, of passes since a time that had another cause."""
        self.num = 0
        self._moments: tuple[float, ...] = (0.0,) * 4  # averages of x, t, x * x and x * t over passes

    def observe(self, size: float, seconds: float) -> None:
        """Learn how long a pass over `size` rows took."""
        fixed_s, each_s = self.fit()
        expected_s = fixed_s + each_s * size
        if self.num and _SLOWEST * seconds >= expected_s:
            self.num, seconds = self.num + 1, min(seconds, _SLOWEST * expected_s)
        else:
            self.num = 1
        part = max(1 / self.num, _NEWEST)
        new = (size, seconds, size * size, size * seconds)
        self._moments = tuple(was + part * (now - was) for was, now in zip(self._moments, new, strict=True))

    def fit(self) -> tuple[float, float]:
        """Returns fixed and each, neither below 0; fixed is 0 while all passes had one size."""
        size, seconds, squares, products = self._moments
        if (variance := squares - size * size) <= 1e-9 * squares:
            return 0.0, seconds / max(size, 1.0)
        slope_s = (products - size * seconds) / (variance + _VARIANCE / self.num**2)
        each_s = min(max(0.0, slope_s), seconds / size)
        return seconds - each_s * size, each_s


class Acceptance:
    """How often each token of a draft is accepted: if all before it are (rates), and at all (reached)."""

    def __init__(self, kept: float, weight: float) -> None:
        """A new draft leaves the part `kept` of the older ones; a prior counts as `weight` drafts.

        Sets rates = [] and reached = [], later one number for each position, and for the gate saved_s = 0
        and is_right = False.
        """
        self._kept, self._weight = kept, weight
        self._counts: list[tuple[float, float]] = []  # accepted and verified, at each position
        self.rates: list[float] = []
        self.reached: list[float] = []
        self.saved_s = 0.0  # by a request's drafts, and what it may lose by its tokens so far
        self.is_right = False  # whether all of its last draft was accepted

    def observe(self, num_draft_tokens: int, num_accepted_tokens: int, typical: Sequence[float] = ()) -> None:
        """Learn from a draft. The prior of a position is the rate before it, and the `typical` rate there."""
        self._counts += [(0.0, 0.0)] * (max(num_draft_tokens, len(typical)) - len(self._counts))
        rate, self.rates = typical[0] if typical else 0.5, []
        for i, (accepted, verified) in enumerate(self._counts):
            prior = (rate + typical[i]) / 2 if typical else rate
            is_verified = i < num_draft_tokens and i <= num_accepted_tokens
            accepted = self._kept * accepted + (i < num_accepted_tokens)
            verified = self._kept * verified + is_verified
            self._counts[i] = accepted, verified
            rate = (accepted + self._weight * prior) / (verified + self._weight)
            self.rates.append(rate)
        self.reached = list(accumulate(self.rates, mul))
