"""Changed copies of a package, each tested in a process of its own that can be stopped."""

import multiprocessing
import os
import signal
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from tiny_llm_lab.course.checking.worker import Result, Trial, serve

# A mutation may loop forever. The tests of a task take a few seconds, compiling kernels some twenty.
# Processor time, not the clock on the wall: a busy machine must not turn a missed mistake into a caught one.
LIMIT_S = 60.0
# For one that waits forever without computing anything.
_WALL_FACTOR = 10
# More would not help: MLX uses several threads itself.
_MAX_PROCESSES = 2
# What takes long to import is imported once, in a server that forks a process for each trial. MLX is not: a
# forked copy of a process in which it runs hangs.
_PRELOADED = ["numpy", "pytest", "rich.live", "rich.progress"]
_PRELOADED += ["transformers.models.auto.tokenization_auto"]


def run_trial(trial: Trial, limit_s: float = LIMIT_S) -> Result:
    """The result of a trial. Raises TimeoutError when it takes more than `limit_s` of processor time."""
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")  # it would say that PyTorch is missing
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    answer, theirs = context.Pipe(duplex=False)
    with tempfile.TemporaryDirectory(prefix="tiny-llm-") as folder:
        process = context.Process(target=serve, args=(theirs, trial, Path(folder), limit_s), daemon=True)
        process.start()
        theirs.close()
        try:
            if not answer.poll(limit_s * _WALL_FACTOR):
                raise TimeoutError
            result = answer.recv()
            assert isinstance(result, Result)
            return result
        except EOFError:
            process.join()
            if process.exitcode == -signal.SIGXCPU:
                raise TimeoutError from None
            return Result(error="the process that ran the tests died")
        finally:
            process.kill()
            process.join()


def run_trials(trials: Iterable[Trial], limit_s: float = LIMIT_S) -> Iterator[Result | TimeoutError]:
    """The results of many trials, in order, from a few processes at a time; limits as in `run_trial`."""
    with ThreadPoolExecutor(min(_MAX_PROCESSES, os.cpu_count() or 1)) as pool:
        yield from pool.map(partial(_result_or_timeout, limit_s), trials)


def _result_or_timeout(limit_s: float, trial: Trial) -> Result | TimeoutError:
    try:
        return run_trial(trial, limit_s)
    except TimeoutError as error:
        return error
