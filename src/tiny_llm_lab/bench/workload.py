"""Long prompts that arrive while short ones are being answered, counted in tokens, not in words.

A chunked-prefill benchmark shows nothing unless three things hold: somebody is decoding when a long prompt
comes, somebody arrives while it is being computed, and "long" is long in tokens. All three are laid down
here, and `recording.overlap_complaint` checks afterwards that they came true.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from tiny_llm_lab.types import Prompt, SamplingParams, UserError

# early: decoding when the first long prompt comes; late: arrives while a long prompt is being computed.
Kind = Literal["early", "long", "late"]

# The number stands first: prompts that begin alike would be one prompt to a prefix cache.
_LONG_TEXT: Final = "{number}. Write a detailed essay about "
_LONG_FILLER: Final = "artificial intelligence "
_SHORT_TEXT: Final = "{number}. Hello, this is a short question. "
_SHORT_FILLER: Final = "What is a token? "
_EARLY_SHARE: Final = 0.4
# Late prompts arrive in this part of the time that one unchunked long prefill takes.
_LATE_FROM, _LATE_TO = 0.1, 0.6
# From one long prompt to the next, in unchunked long prefills. Below one, so that no pause comes between them
# even when the machine has become faster than it was while its speed was learnt.
_LONG_SPACING: Final = 0.7


@dataclass(frozen=True)
class Workload:
    """How many requests of which length."""

    num_long: int
    long_tokens: int
    long_max_tokens: int
    num_short: int
    short_tokens: int
    short_max_tokens: int

    def __post_init__(self) -> None:
        checks = {
            "--num-long must be 1 or more": self.num_long >= 1,
            "--num-short must be 2 or more: one to decode, one to arrive late": self.num_short >= 2,
            "--short-tokens must be 1 or more": self.short_tokens >= 1,
            "--long-tokens must be more than --short-tokens": self.long_tokens > self.short_tokens,
            "--max-tokens must be 2 or more: one token has no gap": self.short_max_tokens >= 2,
            "--long-max-tokens must be 1 or more": self.long_max_tokens >= 1,
        }
        for complaint, holds in checks.items():
            if not holds:
                raise UserError(complaint)

    @property
    def num_early(self) -> int:
        """Short requests that are there from the start; the other short ones are late."""
        return max(1, round(_EARLY_SHARE * self.num_short))

    @property
    def longest(self) -> int:
        """Tokens of the longest request, prompt and answer."""
        return max(self.long_tokens + self.long_max_tokens, self.short_tokens + self.short_max_tokens)

    def kinds(self) -> list[Kind]:
        """The kind of every request: the early ones, then each long one followed by its late ones."""
        kinds: list[Kind] = ["early"] * self.num_early
        for number in range(self.num_long):
            kinds.append("long")
            kinds.extend("late" for _ in range(self._num_late(number)))
        return kinds

    def arrivals(self, early_s: float, long_s: float) -> list[float]:
        """Arrival of every request, scaled to the machine.

        `early_s` is how long the early ones take to get their first tokens, `long_s` one unchunked
        prefill of a long prompt. The same arrivals serve every prefill_step.
        """
        arrivals = [0.0] * self.num_early
        for number in range(self.num_long):
            start_s = early_s * 1.2 + number * _LONG_SPACING * long_s
            arrivals.append(start_s)
            late = self._num_late(number)
            for place in range(late):
                share = _LATE_FROM + (_LATE_TO - _LATE_FROM) * place / max(late - 1, 1)
                arrivals.append(start_s + share * long_s)
        return arrivals

    def _num_late(self, number: int) -> int:
        late = self.num_short - self.num_early
        return late // self.num_long + (number < late % self.num_long)


def build_prompts(
    workload: Workload, arrivals: Sequence[float], encode: Callable[[str], list[int]]
) -> list[Prompt]:
    """The requests as token ids of exactly the wanted lengths; each answers exactly its max_tokens."""
    prompts = []
    for number, (kind, arrival_s) in enumerate(zip(workload.kinds(), arrivals, strict=True)):
        if kind == "long":
            text, filler, length = _LONG_TEXT, _LONG_FILLER, workload.long_tokens
        else:
            text, filler, length = _SHORT_TEXT, _SHORT_FILLER, workload.short_tokens
        max_tokens = workload.long_max_tokens if kind == "long" else workload.short_max_tokens
        sampling = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
        token_ids = exactly(encode, text.format(number=number), filler, length)
        prompts.append(Prompt(token_ids, sampling, arrival_s))
    return prompts


def exactly(encode: Callable[[str], list[int]], text: str, filler: str, length: int) -> list[int]:
    """`text` with as many `filler` behind it as make `length` tokens, cut to that length."""
    copies = 1
    while len(token_ids := encode(text + filler * copies)) < length:
        copies *= 2
    assert len(token_ids[:length]) == length
    return token_ids[:length]
