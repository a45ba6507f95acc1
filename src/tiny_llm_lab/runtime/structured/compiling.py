"""Compiles a grammar of llguidance, in the engine's process and in one that only tries forms.

It imports nothing of ours, so that the latter is small.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final, TypeVar

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

T = TypeVar("T")
# Compiling recurses as deeply as rules refer to rules, which overflows a stack of the usual size.
STACK_BYTES: Final = 256 << 20
# What one mask may cost, about 10 ms: a step of the engine waits for it.
_STEP_LEXER_FUEL: Final = 100_000
_STEP_MAX_ITEMS: Final = 50_000
NOTHING: Final = "no text can match it"


def compiled(library: LLTokenizer, grammar: str) -> LLMatcher:
    """The matcher at the start of `grammar`, in which its first mask is computed already.

    Raises ValueError with llguidance's reason, and with `NOTHING` for a grammar without a text.
    """
    limits = LLParserLimits(
        verbose_errors=False, step_lexer_fuel=_STEP_LEXER_FUEL, step_max_items=_STEP_MAX_ITEMS
    )
    matcher = LLMatcher(library, grammar, log_level=0, limits=limits)
    if matcher.is_error():
        raise ValueError(matcher.get_error())
    first = matcher.deep_copy()
    first.compute_bitmask()
    if first.is_error():
        stopped = first.stop_reason()
        raise ValueError(NOTHING if "Complex" not in stopped else "its first token costs too much")
    return matcher


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
