"""What a draw keeps, and what it then draws, in float64; keys that show it; rows to draw from."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import mlx.core as mx
import numpy as np
from tests.helpers.distributions import assert_follows
from tests.helpers.tolerance import Tolerance, assert_close
from tests.helpers.toy import random_array

from tiny_llm_lab.types import DrawRow, KernelOps, LogitEdits, RowChanges, SamplingParams, mixed, uniform
from tiny_llm_lab.types.computing import noise

DTYPES = (mx.float32, mx.bfloat16, mx.float16)
KINDS = ("normal", "flat", "nearly flat", "peaked", "ties", "one", "two", "1,025", "large")
TEMPERATURES = (1.0, 0.7, 3.0, 1.0, 1e-6, 0.7, 1e6, 0)
CUTS: Sequence[dict[str, float]] = (
    {},
    {"top_p": 0.8},
    {"top_k": 20},
    {"min_p": 0.05},
    {"top_p": 0.95},
    {"top_k": 20, "top_p": 0.8},
    {"top_p": 0.999, "min_p": 0.3},
    {"top_k": 1000, "min_p": 0.01},
    {"top_p": 0.3},
    {"top_k": 1, "top_p": 0.5},
    {"top_k": 70, "top_p": 0.9, "min_p": 0.2},
    {"top_k": 10**9, "top_p": 1e-6},
    {"top_p": 0.5, "top_k": 2},
)
_LARGEST_GUMBEL = 22.18  # of a number of 2^-32


@dataclass(frozen=True)
class Rounding:
    """How far a set of operators may be off; all else must be right."""

    mass: float  # of a sum of probabilities, as a share of all of them
    steps: float = 0  # of a score plus a Gumbel number, in units of the last place of the largest score
    score: float = 2e-5  # the same, at any size: float32 keeps e^x of x down to -87 and logarithms so well


# C++ adds in float64 what float32 weighs. MLX adds 248,320 numbers in float32, on a CPU one after the other.
# Both draw by what is below the peak; without operators a Gumbel number is added to a score of any size.
CPP, MLX, ARRAYS = Rounding(2e-6), Rounding(3e-4), Rounding(3e-4, steps=4)


class Truth:
    """A row of logits [V] with its settings: what is kept and drawn."""

    def __init__(self, logits: np.ndarray, how: DrawRow, rounding: Rounding) -> None:
        """Sets scores, and surely and maybe: the thresholds of what is kept, and of what rounding may keep.

        The division by the temperature is that of float32, which all operators do alike.
        """
        s, self.key = how.sampling, how.key
        z = changed(logits.astype(np.float32), how.changes)
        self.is_greedy, temperature = s.temperature == 0, np.float32(s.temperature or 1)
        self.scores = np.float64(z / temperature)
        self.peak, self.rounding = self.scores.max(), rounding
        self.surely = self.maybe = float(np.finfo(np.float32).min)
        if self.is_greedy:
            return
        falling = np.sort(self.scores)[::-1]
        if 0 < s.top_k < falling.size:
            self._raise(falling[s.top_k - 1], 0)
            falling = falling[falling >= self.surely]
        if s.top_p < 1:
            mass = np.exp(falling - self.peak)
            first_of_equals = np.searchsorted(-falling, -falling)
            above = np.concatenate([[0], np.cumsum(mass)])[first_of_equals] / mass.sum()
            share = float(np.float32(s.top_p))
            surely = falling[above <= max(share - rounding.mass, 0)][-1]
            self.maybe = max(self.maybe, falling[above < share + rounding.mass][-1])
            self.surely = max(self.surely, surely)
        if s.min_p > 0:
            cut = self.peak + float(np.log(float(np.float32(s.min_p))))
            # The threshold is a float32, and so is a probability near it.
            self._raise(cut, 4 * float(np.spacing(np.float32(max(abs(self.peak), abs(cut), 1)))))

    def _raise(self, cut: float, rounding: float) -> None:
        self.maybe, self.surely = (
            max(self.maybe, cut - rounding),
            min(self.peak, max(self.surely, cut + rounding)),
        )

    def probabilities(self) -> np.ndarray:
        """Of all tokens [V], in float64."""
        weights = np.where(self.scores >= self.surely, np.exp(self.scores - self.peak), 0)
        return weights / weights.sum()

    def sums(self, key: int) -> np.ndarray:
        """Scores and Gumbel numbers [V], -inf where not even rounding keeps a token."""
        numbers = np.array(uniform([key], self.scores.size))[0].astype(np.float64)
        gumbel = 0 if self.is_greedy else -np.log(-np.log1p(-numbers))
        return np.where(self.scores >= self.maybe, self.scores + gumbel, -np.inf)

    def slack(self) -> float:
        """How much less than the largest the sum of a drawn token may be."""
        size = float(np.spacing(np.float32(abs(self.peak))))
        return 0 if self.is_greedy else self.rounding.score + self.rounding.steps * size

    def allows(self, token: int, key: int) -> bool:
        """Whether `token` may be drawn with `key`; of equal logits the lowest if greedy."""
        if self.is_greedy:
            return token == int(self.scores.argmax())
        sums = self.sums(key)
        return bool(sums[token] >= sums[self.scores >= self.surely].max() - self.slack())

    def edges(self) -> Iterator[tuple[int, int]]:
        """The tokens on both sides of the threshold, each with a key that draws it if it is kept.

        They are the first and the last of the lowest scores that are kept for sure, and the same of the
        highest that are not. A token that no key draws is left out: it is too unlikely.
        """
        is_kept = self.scores >= self.surely
        out = self.scores[self.scores < self.maybe]
        ends = [self.scores[is_kept].min(), *([out.max()] if out.size else [])]
        for token in {int(each) for end in ends for each in np.flatnonzero(self.scores == end)[[0, -1]]}:
            for high in range(token, token + 4):
                key = key_of(token, high)
                others = np.where(is_kept, self.sums(key), -np.inf)
                others[token] = -np.inf
                if self.scores[token] + _LARGEST_GUMBEL - 2 * self.slack() > others.max():
                    yield token, key
                    break


def check_draws(ops: KernelOps, rounding: Rounding, vocab_size: int, cases: Sequence[int]) -> int:
    """Compare what is drawn from rows of these numbers with the truth; returns how many edges were looked at.

    Each row is drawn from with a key of its own, with the first or the last key, and with one for each edge.
    """
    num_edges = 0
    for number in cases:
        logits, how = row_of(number, vocab_size)
        truth = Truth(wide(logits), how, rounding)
        keys = [(None, how.key), (None, number % 2 * (2**64 - 1))]
        keys += [] if truth.is_greedy else list(truth.edges())
        rows = [DrawRow(how.sampling, key, how.changes) for _, key in keys]
        drawn = ops.draw(mx.broadcast_to(logits, (len(rows), vocab_size)), rows)
        for (edge, key), token in zip(keys, np.array(drawn).tolist(), strict=True):
            seen = f"row {number} of {vocab_size}, {kind_of(number)}, {how.sampling}, edge {edge}, key {key}"
            assert token < vocab_size and truth.allows(token, key), f"{seen}: drew {token}"
            num_edges += edge is not None
    return num_edges


def check_scores(ops: KernelOps, vocab_size: int, cases: Sequence[int], in_order: bool) -> None:
    """Compare logprobs, and the likeliest tokens, with float64. `in_order`: of equals the lowest is first."""
    for number in cases:
        row, how = row_of(number, vocab_size)
        z, num = wide(row).astype(np.float64), (0, 1, 20, 5, min(vocab_size, 3000) + 9)[number % 5]
        want = z - z.max()
        want -= np.log(np.exp(want).sum())
        tokens = np.array([z.argmax(), z.argmin(), how.key % vocab_size], np.uint32)
        chosen, top, likely = ops.score(mx.broadcast_to(row, (3, vocab_size)), mx.array(tokens), num)
        what = f"row {number} of {vocab_size}, {kind_of(number)}"
        _assert_logprobs(chosen, want[tokens], what)
        assert top.shape == likely.shape == (3, min(num, vocab_size)), what
        for found, logprobs in zip(np.array(top), likely, strict=True):
            _assert_logprobs(logprobs, want[found], f"{what}, the likeliest")
            best = np.lexsort((np.arange(vocab_size), -z))[:num]
            assert len({*found.tolist()}) == len(best)
            assert (found == best).all() if in_order else (np.sort(-z[found]) == -z[best]).all(), what


def _assert_logprobs(got: mx.array, want: np.ndarray, what: str) -> None:
    # Of size one they are right to 1e-5; float32 has no more digits of large ones.
    finite, found = np.isfinite(want), np.array(got).astype(np.float64)
    assert (found[~finite] == -np.inf).all(), f"{what}: -inf is {found[~finite]}"
    assert_close(found[finite], want[finite], Tolerance(2.0**-22, 1e-5), what=what)


def check_frequencies(ops: KernelOps, num_draws: int) -> None:
    """Draws under twenty settings must have the distribution of the truth, by chi-square."""
    for number in range(20):
        temperature, cut = (0.7, 1.0, 3.0)[number % 3], CUTS[number % len(CUTS)]
        logits = mx.round(random_array(number, 400) * 8) / 4
        s = SamplingParams(temperature, **cut)  # type: ignore[arg-type]
        first = mixed(number)  # as a request of this seed has it
        how = [DrawRow(s, (first + i) % 2**64) for i in range(num_draws)]
        parts = [how[i : i + 5000] for i in range(0, num_draws, 5000)]
        drawn = np.concatenate(
            [np.array(ops.draw(mx.broadcast_to(logits, (len(part), 400)), part)) for part in parts]
        )
        want = Truth(np.array(logits), how[0], MLX).probabilities()
        # Tokens too rare for the test are one.
        is_rare = (want > 0) & (want * num_draws < 10)
        place = np.where(is_rare, np.flatnonzero(is_rare)[0] if is_rare.any() else 0, np.arange(400))
        assert_follows(place[drawn], np.bincount(place, want, minlength=400), f"{s}")


def kind_of(number: int) -> str:
    """What the logits of a row are."""
    return KINDS[number % len(KINDS)]


def row_of(number: int, vocab_size: int, dtype: mx.Dtype | None = None) -> tuple[mx.array, DrawRow]:
    """Logits [V] of any kind, and settings; 2 of 5 are edited, masked, or both. No dtype: any."""
    rng = np.random.default_rng([number, vocab_size])
    sampling = SamplingParams(TEMPERATURES[number % len(TEMPERATURES)], **CUTS[number % len(CUTS)])  # type: ignore[arg-type]
    row = mx.array(_numbers(kind_of(number), vocab_size, rng).astype(np.float32))
    row = row.astype(dtype or DTYPES[rng.integers(len(DTYPES))])
    likeliest = int(wide(row).argmax())
    changes = _some_changes(rng, vocab_size, likeliest) if number % 5 > 2 else RowChanges()
    return row, DrawRow(sampling, int(rng.integers(2**64, dtype=np.uint64)), changes)


def _numbers(kind: str, V: int, rng: np.random.Generator) -> np.ndarray:
    normal = rng.normal(size=V) * {"flat": 0, "nearly flat": 0.01, "peaked": 10, "large": 3000}.get(kind, 2)
    if kind == "ties":
        return np.round(normal * 2) / 2
    if kind in ("one", "two", "1,025"):
        num = min(V, {"one": 1, "two": 2, "1,025": 1025}[kind])
        normal[rng.permutation(V)[num:]] = -np.inf
    return normal


def _some_changes(rng: np.random.Generator, V: int, likeliest: int) -> RowChanges:
    """Edits of some tokens, and a mask that leaves the likeliest and perhaps others; or only one of both."""
    tokens = rng.permutation(V)[: rng.integers(1, min(V, 300) + 1)].astype(np.uint32)
    # Numbers that float32 adds, multiplies and divides exactly, in whatever order.
    columns = ([0, 0, -3, 2.5, -1e30], [1, 0.5, 2, 4], [0, 0, 1.5, -2])
    changes = np.stack([rng.choice(each, len(tokens)) for each in columns], axis=-1).astype(np.float32)
    is_allowed = rng.random(32 * -(-V // 32)) < rng.choice([1, 0.9, 0.1, 0])
    is_allowed[likeliest] = True
    allowed = np.packbits(is_allowed, bitorder="little").view(np.uint32)
    kind = rng.integers(3)
    return RowChanges(LogitEdits(tokens, changes) if kind != 1 else None, allowed if kind != 0 else None)


def changed(logits: np.ndarray, changes: RowChanges) -> np.ndarray:
    """float32 logits [V] after the changes."""
    logits = logits.copy()
    if changes.edits is not None:
        for token, (bias, factor, loss) in zip(changes.edits.tokens, changes.edits.changes, strict=True):
            biased = logits[token] + bias
            logits[token] = (biased / factor if biased > 0 else biased * factor) - loss
    if changes.allowed is not None:
        bits = np.unpackbits(changes.allowed.view(np.uint8), bitorder="little")[: logits.size]
        logits[bits == 0] = -np.inf
    return logits


def wide(logits: mx.array) -> np.ndarray:
    """As float32."""
    return np.array(logits.astype(mx.float32))


def key_of(token: int, high: int = 0) -> int:
    """A key whose random number for `token` is 2^-32, the least there is; another one for each `high`.

    All steps of the hash can be turned back.
    """
    x = _unshifted(high % 2**32, 16, 32)
    (first, second), step = noise._ROUNDS[0], noise._TOKEN_STEP
    x = _unshifted(x * pow(second, -1, 2**32) % 2**32, 15, 32)
    x = _unshifted(x * pow(first, -1, 2**32) % 2**32, 16, 32)
    value = high % 2**32 << 32 | (x - token * step) % 2**32
    for shift, factor in ((31, 0x94D049BB133111EB), (27, 0xBF58476D1CE4E5B9)):
        value = _unshifted(value, shift, 64) * pow(factor, -1, 2**64) % 2**64
    return (_unshifted(value, 30, 64) - noise._STEP) % 2**64


def _unshifted(value: int, shift: int, bits: int) -> int:
    """The x for which x ^ x >> shift is `value`."""
    found = value
    for _ in range(bits // shift):
        found = value ^ found >> shift
    return found
