"""Random histories of requests with drafts, and how long a policy takes for them, by a simulated machine."""

import random
from dataclasses import dataclass
from typing import Any

_LEVELS = (0.0, 0.1, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.98)
_TOKENS_A_REQUEST = 3000  # at most


class History:
    """Texts whose draft tokens are right at rates that jump, streams that come and go, and what passes cost.

    A step of r rows takes a + b r seconds, a pass of the draft model c + d r.
    """

    def __init__(self, seed: int) -> None:
        self.seed, rng = seed, random.Random(seed)
        self.most = rng.choice((4, 8))
        self.a = a = rng.uniform(0.005, 0.2)
        is_cpu, is_model = rng.random() < 2 / 3, rng.random() < 2 / 3
        self.b = a * (0.02 * 25 ** rng.random() if is_cpu else rng.choice((0, 0.001, 0.003)))
        self.c = a * rng.uniform(0, 0.5) if is_model else 0.0
        self.d = self.c * self.b / a * rng.uniform(0.5, 1)
        num = rng.choice((1, 1, 2, 3, 4, 5, 6, 7, 8))
        self.num_tokens = int(rng.uniform(600, 3000) * (1 + num) / 2)
        self.streams: list[tuple[float, int]] = [(0, rng.randint(1, num))]  # from which token on; how many
        while self.streams[-1][0] < self.num_tokens:
            after = self.streams[-1][0] + rng.expovariate(1 / 800) + 50
            self.streams.append((after, rng.randint(1, num)))
        every, made = rng.choice((100, 300, 1000, 10000)), 0
        self.texts: list[list[bool]] = []  # of each request: whether a draft token is right there
        self.changes: list[list[int]] = []  # and where that rate jumps
        while made < self.num_tokens + 10 * _TOKENS_A_REQUEST:
            length, text, changes = int(300 * 10 ** rng.random()), [], []
            while len(text) < length:
                changes.append(len(text))
                level, left = rng.choice(_LEVELS), int(rng.expovariate(1 / every)) + 1
                text += [rng.random() < level for _ in range(min(left, length - len(text)))]
            self.texts.append(text)
            self.changes.append(changes)
            made += length

    def describe(self) -> str:
        """What it is, in one line."""
        costs = ", ".join(f"{name} {getattr(self, name) / self.a:.3f} a" for name in "bcd")
        return f"drafts of {self.most}, {costs}, up to {max(num for _, num in self.streams)} streams"


@dataclass(frozen=True)
class Served:
    """What a policy took."""

    a_token_s: float
    num_tokens: int
    noticing_s: float  # three tokens alone for each change of acceptance, and eight


def seconds_of(history: History, policy: Any) -> Served:
    """Serve a history: "always" drafts all, "never" nothing; a gate says how much.

    The gate sees times with 10 % of noise, and a pause of 20 times now and then. Neither counts as taken.
    """
    rng, gate = random.Random(history.seed), None if isinstance(policy, str) else policy
    a, b, c, d = history.a, history.b, history.c, history.d
    places = [0] * len(history.texts)
    open_, total, seconds, phase = list(range(len(places))), 0, 0.0, 0
    while total < history.num_tokens:
        while phase + 1 < len(history.streams) and history.streams[phase + 1][0] <= total:
            phase += 1
        live = open_[: history.streams[phase][1]]
        if gate:
            gate.begin_step(len(live))
        lengths = []
        for i in live:
            most = min(history.most, len(history.texts[i]) - places[i] - 1)
            lengths.append(gate.length(str(i), most) if gate else most if policy == "always" else 0)
        num_rows, num_passes = sum(lengths), max(lengths)
        drafting_s, step_s = c * num_passes + d * num_rows, a + b * (len(live) + num_rows)
        seconds += drafting_s + step_s
        if gate and num_rows:
            looked_up = (1, sum(map(bool, lengths)))
            passes = (num_passes, num_rows) if c else looked_up
            gate.observe_drafting(*passes, drafting_s * _noise(rng))
        if gate:
            gate.observe_step(len(live) + num_rows, step_s * _noise(rng))
        for i, length in zip(live, lengths, strict=True):
            text, first = history.texts[i], places[i]
            right = next((j for j in range(length) if not text[first + j]), length)
            places[i] += right + 1
            total += right + 1
            if gate:
                gate.observe_draft(str(i), length, right)
            if places[i] >= len(text):
                open_.remove(i)
                if gate:
                    gate.forget(str(i))
    seen = sum(at < place for i, place in enumerate(places) for at in history.changes[i])
    return Served(seconds / total, total, (8 + 3 * seen) * (a + b))


def _noise(rng: random.Random) -> float:
    noise = max(0.3, rng.gauss(1, 0.1))
    return noise * 20 if rng.random() < 0.002 else noise
