"""Runs a function in a fresh process, so that it can't reuse what another has compiled or cached."""

import os
import re
import signal
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import get_context
from typing import TypeVar

from tiny_llm_lab.runtime.checkout import has_checkout, repository
from tiny_llm_lab.runtime.console.talk import CrashError, UnwrittenError
from tiny_llm_lab.runtime.console.todo import WITH_REF, find_todo
from tiny_llm_lab.types import UserError

_WRONG_CALL = re.compile(r"\(\) (?:got an unexpected keyword|takes .*positional) argument")

Asked = TypeVar("Asked")
Answer = TypeVar("Answer")


def run_fresh(function: Callable[[Asked], Answer], asked: Asked, threads: int = 0) -> Answer:
    """`function(asked)` of a new process with `threads` threads; 0 leaves their number to every library.

    Raises UserError for what the user can fix, UnwrittenError for an unwritten task, TypeError for an
    argument that a function does not take, and CrashError for anything else.
    """
    with ProcessPoolExecutor(1, get_context("spawn"), initializer=_prepare) as pool:
        try:
            with _environment(threads):  # the call starts the process
                begun = pool.submit(_answer, function, asked)
            return begun.result()
        except BrokenProcessPool:
            raise CrashError("the process ended without a result: it may have run out of memory") from None


@contextmanager
def _environment(threads: int) -> Iterator[None]:
    """Libraries read the number of threads when they are loaded, before any of our code runs."""
    kept = dict(os.environ)
    if threads:
        os.environ.update(OMP_NUM_THREADS=str(threads), TINY_LLM_THREADS=str(threads))
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(kept)


def _prepare() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # the parent reports Ctrl-C
    os.dup2(2, 1)  # stdout belongs to the results


def _answer(function: Callable[[Asked], Answer], asked: Asked) -> Answer:
    try:
        return function(asked)
    except UserError:
        raise
    except Exception as error:
        if has_checkout() and (todo := find_todo(error, repository())):
            raise UnwrittenError(f"{todo}{WITH_REF}") from None
        if isinstance(error, TypeError) and _WRONG_CALL.search(str(error)):
            raise  # a later task may add that parameter: `cli` knows the tasks
        raise CrashError("".join(traceback.format_exception(error)).strip()) from None
