"""Compiles a grammar of llguidance, in the engine's process and in one that only tries forms.

It imports nothing of ours, so that the latter is small.
"""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final, TypeVar

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

T = TypeVar("T")
# Compiling recurses as deeply as rules refer to rules, which overflows a stack of the usual size.
STACK_BYTES: Final = 256 << 20
# A step of the engine waits for a mask. Usual ones take 0.1 ms, counts within counts a second.
_MOST_MASK_S: Final = 0.05
_TRIED_MASKS: Final = 8
_STEP_LEXER_FUEL: Final = 100_000
_STEP_MAX_ITEMS: Final = 10_000  # JSON schemas need a few hundred; 50,000 take 0.2 s
NOTHING: Final = "no text can match it"
COSTLY: Final = "its tokens cost too much: lower the counts in its patterns"


def compiled(library: LLTokenizer, grammar: str) -> LLMatcher:
    """The matcher at the start of `grammar`. Raises ValueError with llguidance's reason."""
    limits = LLParserLimits(
        verbose_errors=False, step_lexer_fuel=_STEP_LEXER_FUEL, step_max_items=_STEP_MAX_ITEMS
    )
    matcher = LLMatcher(library, grammar, log_level=0, limits=limits)
    if matcher.is_error():
        raise ValueError(matcher.get_error())
    return matcher


def require_cheap(matcher: LLMatcher) -> None:
    """Compute a few masks, with which `matcher` goes on.

    Raises ValueError for one that takes too much CPU time, and for a grammar without a text.
    """
    for number in range(_TRIED_MASKS):
        begun_s = time.thread_time()
        mask = matcher.compute_bitmask()
        if matcher.is_error() and "NoExtension" in matcher.get_error() and not number:
            raise ValueError(NOTHING)
        if matcher.is_error() or time.thread_time() - begun_s > _MOST_MASK_S:
            raise ValueError(COSTLY)
        middle = len(mask) // 2
        place = next((at for at in (*range(middle, len(mask)), *range(middle)) if mask[at]), 0)
        token = 8 * place + (mask[place] & -mask[place]).bit_length() - 1
        if matcher.is_stopped() or not mask[place] or not matcher.try_consume_tokens([token]):
            return


def on_large_stack(starting: threading.Lock, call: Callable[[], T], stack_bytes: int = STACK_BYTES) -> T:
    """What `call` returns or raises, on a thread of its own. `starting` is held while the thread starts."""
    result: Future[T] = Future()

    def run() -> None:
        try:
            result.set_result(call())
        except BaseException as error:
            result.set_exception(error)

    with starting:  # the size is one for all threads
        before = threading.stack_size(stack_bytes)
        try:
            threading.Thread(target=run, name="grammar", daemon=True).start()
        finally:
            threading.stack_size(before)
    return result.result()
