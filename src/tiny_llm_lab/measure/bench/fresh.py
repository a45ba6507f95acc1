"""Fresh processes, which reuse nothing that another compiled or cached, and specs measured in them."""

import os
import re
import signal
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from typing import Final, TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn

from tiny_llm_lab.measure.bench.peer import NO_PEERS, Peer
from tiny_llm_lab.measure.bench.run import Run
from tiny_llm_lab.measure.bench.sample import measure
from tiny_llm_lab.measure.bench.spec import Spec
from tiny_llm_lab.runtime.checkout import has_checkout, repository
from tiny_llm_lab.runtime.console.talk import CrashError, Remaining, UnwrittenError, log
from tiny_llm_lab.runtime.console.todo import WITH_REF, find_todo
from tiny_llm_lab.runtime.interleave import interleave
from tiny_llm_lab.types import UserError

_WRONG_CALL = re.compile(r"\(\) (?:got an unexpected keyword|takes .*positional) argument")
_TRIES: Final = 3  # of a run that measured nothing useful

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


class Sweep:
    """`runs` has the runs of every spec so far, also after an interrupt.

    A spec behind the first `num_required` that fails is left out; `failures` has the reason by its title.
    A spec whose solution is one of `peers` is measured by it.
    """

    def __init__(
        self, specs: Sequence[Spec], num_required: int | None = None, peers: Mapping[str, Peer] = NO_PEERS
    ) -> None:
        self.runs: dict[Spec, list[Run]] = {spec: [] for spec in specs}
        self.failures: dict[str, str] = {}
        self._required = specs[:num_required]
        self._measure = partial(measure, peers=dict(peers))

    def measure(
        self,
        repeats: int,
        shown: Callable[[Run], str] = lambda run: f"{run.total_s:.2f} s",
        complaint: Callable[[Run], str | None] = lambda run: None,
    ) -> None:
        """Run every spec once a round, with the round as its seed, and log what `shown` says of each run.

        A run with a `complaint` is run again. Raises UserError for the `_TRIES`th, and what a required spec
        fails with.
        """
        console, left = Console(stderr=True), list(self.runs)
        columns = ("{task.description}", BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=console, transient=True, disable=not console.is_interactive) as bar:
            task, remaining = bar.add_task("", total=len(left) * repeats), Remaining(len(left) * repeats)
            for repeat, spec in interleave(left, repeats):
                title = f"{spec.title}, repeat {repeat}"
                bar.update(task, description=title)
                try:
                    run = self._useful(replace(spec, seed=spec.seed + repeat), title, complaint)
                except (UserError, CrashError) as error:
                    self._leave_out(spec, error)
                    left.remove(spec)
                    remaining.leave_out(repeats - repeat)
                    continue
                self.runs[spec].append(run)
                bar.advance(task)
                log(f"{title}: {shown(run)} ({remaining.done()})")

    def _useful(self, spec: Spec, title: str, complaint: Callable[[Run], str | None]) -> Run:
        for tries in range(1, _TRIES + 1):
            run = run_fresh(self._measure, spec, spec.threads)
            if not (message := complaint(run)):
                return run
            log(f"{title}: {message} (try {tries} of {_TRIES})")
        raise UserError(f"{title}: {message}")

    def _leave_out(self, spec: Spec, error: Exception) -> None:
        if spec in self._required:
            if isinstance(error, CrashError):
                message = f"{error}\nerror: the process of solution {spec.solution} crashed: see above"
                raise CrashError(message) from None
            raise error
        del self.runs[spec]
        self.failures[spec.title] = str(error).splitlines()[-1]
        log(f"{spec.title} is left out: {self.failures[spec.title]}")
