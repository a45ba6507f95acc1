"""The requests that engines are compared on, and what each of them made of these."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Final, Literal

from tiny_llm_lab.metrics import percentile
from tiny_llm_lab.types import Prompt, Timing

from .setting import Setting, answering

Kind = Literal["stream", "long", "behind"]
_SHORT: Final = 32
_STREAM_ANSWER: Final = 64
_NUM_LONG, _LONG_ANSWER = 2, 4
_BEHIND_ANSWER: Final = 8
_FIRST_TOKENS: Final = 4
_BURST: Final[list[Kind]] = ["long", "behind", "behind"]  # short prompts right behind a long one
_NUM_BEHIND: Final = len(_BURST) - 1


@dataclass(frozen=True)
class Contest:
    """Streams that are there from the start, long prompts among them, short ones right behind each."""

    title: str
    kinds: tuple[Kind, ...]
    prompts: tuple[Prompt, ...]

    @property
    def longest(self) -> int:
        """Tokens of the longest request, prompt and answer."""
        return max(len(prompt.content) + (prompt.sampling.max_tokens or 0) for prompt in self.prompts)

    @property
    def useful_tokens(self) -> int:
        """What has to be computed at least: everything but each answer's last token."""
        return sum(len(prompt.content) + (prompt.sampling.max_tokens or 0) - 1 for prompt in self.prompts)


@dataclass(frozen=True)
class Outcome:
    """One run of one engine; None where it had nothing to measure."""

    total_s: float
    output_tokens_per_s: float
    computed_per_useful: float
    itl_p99_s: float | None  # of the streams, while a long prompt was waiting or in prefill
    itl_max_s: float | None
    ttft_behind_s: float | None  # median of the short prompts behind a long one
    ttft_long_s: float | None
    peak_bytes: float  # above what was held before the run, the weights among it


@dataclass(frozen=True)
class Entry:
    """An engine in the contest: `run` serves all requests once. `about` says what is special with it."""

    name: str
    run: Callable[[Contest], Outcome]
    about: str = ""


# Field of an outcome -> title of its column, factor, decimals.
MEANINGS: Final = {
    "output_tokens_per_s": ("out tok/s", 1.0, 1),
    "computed_per_useful": ("computed/useful", 1.0, 2),
    "itl_p99_s": ("ITL p99 ms", 1e3, 1),
    "itl_max_s": ("ITL max ms", 1e3, 1),
    "ttft_behind_s": ("TTFT short ms", 1e3, 0),
    "ttft_long_s": ("TTFT long ms", 1e3, 0),
    "peak_bytes": ("peak MB", 1e-6, 1),
}


def make_contest(setting: Setting, first_tokens_s: float | None) -> Contest:
    """The requests; None: the streams alone with `_FIRST_TOKENS` tokens each, to learn how long these take.

    The first long prompt comes when the engine has given every stream some tokens, the next one as much
    later: a fast engine would have ended its streams before a slow one has begun them.
    """
    if first_tokens_s is None:
        prompts = setting.prompts(setting.streams, _SHORT, seed=2)
        streams = tuple(Prompt(tokens, answering(_FIRST_TOKENS)) for tokens in prompts)
        return Contest("streams", tuple("stream" for _ in streams), streams)
    kinds: list[Kind] = ["stream" for _ in range(setting.streams)]
    lengths, arrivals, answers = (
        [_SHORT] * setting.streams,
        [0.0] * setting.streams,
        [_STREAM_ANSWER] * setting.streams,
    )
    long = min(setting.context, setting.limit // 2)
    for number in range(_NUM_LONG):
        kinds += _BURST
        lengths += [long] + [_SHORT] * _NUM_BEHIND
        arrivals += [(number + 1.2) * first_tokens_s] * (1 + _NUM_BEHIND)
        answers += [_LONG_ANSWER] + [_BEHIND_ANSWER] * _NUM_BEHIND
    tokens = setting.prompts(1, sum(lengths), seed=3)[0]
    prompts_of, first = [], 0
    for length, arrival_s, answer in zip(lengths, arrivals, answers, strict=True):
        prompts_of.append(Prompt(tokens[first : first + length], answering(answer), arrival_s))
        first += length
    title = (
        f"{setting.streams} streams, {_NUM_LONG} prompts of {long} tokens, {_NUM_BEHIND} short behind each"
    )
    return Contest(title, tuple(kinds), tuple(prompts_of))


def outcome(
    contest: Contest, timings: Sequence[Timing], num_computed_tokens: int, peak_bytes: float
) -> Outcome:
    """What a run came to; `timings` in the order of the contest's requests."""
    of = {kind: [t for own, t in zip(contest.kinds, timings, strict=True) if own == kind] for kind in KINDS}
    total_s = max(timing.token_s[-1] for timing in timings) - min(timing.arrival_s for timing in timings)
    gaps = gaps_meanwhile(of["stream"], [(each.arrival_s, each.token_s[0]) for each in of["long"]])
    return Outcome(
        total_s,
        sum(len(timing.token_s) for timing in timings) / total_s,
        num_computed_tokens / contest.useful_tokens,
        percentile(gaps, 99) if gaps else None,
        max(gaps, default=None),
        _median_ttft(of["behind"]),
        _median_ttft(of["long"]),
        peak_bytes,
    )


def gaps_meanwhile(timings: Sequence[Timing], spans: Sequence[tuple[float, float]]) -> list[float]:
    """Every gap that has a part in common with one of the spans (start, end)."""
    return [
        after - before
        for timing in timings
        for before, after in pairwise(timing.token_s)
        if any(before < end and after > start for start, end in spans)
    ]


KINDS: Final[tuple[Kind, ...]] = ("stream", "long", "behind")


def _median_ttft(timings: Sequence[Timing]) -> float | None:
    return median(each.token_s[0] - each.arrival_s for each in timings) if timings else None
