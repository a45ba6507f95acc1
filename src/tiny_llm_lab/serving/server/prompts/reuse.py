"""What of a prompt was computed before, and why the rest is computed: two rows of tokens, compared."""

from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from tiny_llm_lab.runtime.models.text.tokenizer import CheckpointTokenizer, RenderedChat

Tokens = NDArray[np.int32]  # below 0: of a picture
_WINDOW: Final = 16  # tokens in a row that are the same text, wherever they are
_SAMPLE: Final = np.uint64(1 << 61)  # of 8 windows one is compared, whichever prompt it is in
_FACTORS: Final = np.cumprod(np.full(_WINDOW, 0x9E3779B97F4A7C15, np.uint64))
_EVICTED: Final = " and are gone: their memory was needed"
_NO_SNAPSHOT: Final = ", without a snapshot of the states to go on from"
_TURN, _BEFORE, _QUOTED, _MOST_LETTERS = "<|im_start|>", 4, 12, 60


def num_common(one: Tokens, other: Tokens) -> int:
    """How many tokens are the same at the beginning of both."""
    length = min(len(one), len(other))
    differs = one[:length] != other[:length]
    return int(differs.argmax()) if differs.any() else length


def num_moved(before: Tokens, now: Tokens) -> int:
    """About how many tokens of `now` are somewhere in `before` as well, in whatever order."""
    if min(len(before), len(now)) < _WINDOW:
        return 0
    windows = [sliding_window_view(each.astype(np.uint64), _WINDOW) @ _FACTORS for each in (now, before)]
    here, there = (each[each * _FACTORS[0] < _SAMPLE] for each in windows)
    return int(len(now) * np.isin(here, there).mean()) if len(here) else 0


def place_of(tokens: Tokens, at: int, tokenizer: CheckpointTokenizer) -> str:
    """In which part of a conversation a token is; turns are counted as the template wrote them, from 1."""
    mark = tokenizer.encode(RenderedChat(_TURN))
    turns = np.flatnonzero(tokens[: at + 1] == (mark[0] if len(mark) == 1 else -1))
    if not len(turns):
        return "the prompt"
    first = int(turns[-1]) + 1
    role = _text(tokens[first : first + _QUOTED], tokenizer).partition("\n")[0]
    if role == "system":
        has_tools = "<tools>" in _text(tokens[first:at], tokenizer)
        return "the tools" if has_tools else "the system prompt"
    return f"turn {len(turns)} ({role if role.isalpha() else 'unknown'})"


def _text(tokens: Tokens, tokenizer: CheckpointTokenizer) -> str:
    return tokenizer.decode(tokens[tokens >= 0].tolist())  # the others are pictures


Reason = Literal["new", "continued", "differs", "evicted", "no_snapshot"]


@dataclass(frozen=True)
class Reuse:
    """Why a prompt was computed as far as it was."""

    reason: Reason
    says: str  # one line, without a word of the prompt
    num_computed: int
    num_again: int  # tokens of these that were here before, about
    text: str = ""  # of this prompt, where it differs

    def as_dict(self) -> dict[str, Any]:
        """As its own client reads it, and nobody else."""
        says = f"{self.says}: '…{self.text}'" if self.text else self.says
        return {"reason": self.reason, "computed_again": self.num_again, "says": says}


def compare(
    now: Tokens,
    num_cached: int,
    before: Tokens,
    block_size: int,
    tokenizer: CheckpointTokenizer,
    has_states: bool = False,
) -> Reuse:
    """`before` is the earlier prompt, with its answer, that has the most tokens of `now` at its beginning.

    The reason is what cost the most tokens that were here before. `has_states`: the model is a hybrid.
    """
    reason: Reason = "continued"
    why, text, same = "the rest is new", "", max(num_common(before, now), num_cached)
    lost = max(0, min(same, len(now) - 1) // block_size * block_size - num_cached)
    moved = num_moved(before[same:], now[same:]) // _WINDOW * _WINDOW
    gone = _NO_SNAPSHOT if has_states else _EVICTED
    again = f"; about {moved:,} of the rest were here in another place" if moved else ""
    if lost and lost >= moved:
        reason, why = "no_snapshot" if has_states else "evicted", f"{lost:,} more were here{gone}"
    elif same < block_size and not moved:
        reason, why = "new", "no earlier prompt of this client begins like it"
    elif same < min(len(before), len(now) - 1):
        reason, why = "differs", f"differs at token {same:,}, in {place_of(now, same, tokenizer)}"
        quoted = _text(now[max(0, same - _BEFORE) : same + _QUOTED], tokenizer)
        text = " ".join(quoted.split())[:_MOST_LETTERS]
        again += f"; {lost:,} before that were here{gone}" if lost else ""
    says = f"reused {num_cached:,} of {len(now):,}: {why}{again}"
    return Reuse(reason, says, len(now) - num_cached, lost + moved, text)
