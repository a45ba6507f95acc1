"""The highest request rate that a configuration serves inside its SLOs."""

from collections.abc import Callable

# From the first rate this far up and down before giving up, and how close the answer is.
_LARGEST_FACTOR = 2.0**14
_CLOSE_ENOUGH = 1.02


def capacity(serves: Callable[[float], bool], first_rate: float = 1.0) -> float:
    """The highest rate r with serves(r), at most 2 % too low, by doubling or halving, then bisecting.

    `serves` should say yes below some rate and no above. 0.0 when it says no even at a 16,384th of
    `first_rate`, infinity when it says yes at 16,384 times as much.
    """
    good, bad = 0.0, float("inf")
    rate = first_rate
    while good == 0.0 or bad == float("inf"):
        if serves(rate):
            good, rate = rate, rate * 2
        else:
            bad, rate = rate, rate / 2
        if good > first_rate * _LARGEST_FACTOR:
            return float("inf")
        if bad < first_rate / _LARGEST_FACTOR:
            return 0.0
    while bad / good > _CLOSE_ENOUGH:
        rate = (good * bad) ** 0.5
        if serves(rate):
            good = rate
        else:
            bad = rate
    return good
