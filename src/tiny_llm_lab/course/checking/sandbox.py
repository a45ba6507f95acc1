"""Changed copies of a package, tested in warm processes that can be stopped."""

import multiprocessing
import os
import queue
import signal
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

from tiny_llm_lab.course.checking.worker import Result, Trial, serve

# A mutation may loop forever. The tests of a task take a few seconds, compiling kernels some twenty.
# Processor time, not the clock on the wall: a busy machine must not turn a missed mistake into a caught one.
LIMIT_S = 60.0
# For one that waits forever without computing anything.
_WALL_FACTOR = 10
_START_LIMIT_S = 120.0
# More would not help: MLX uses several threads itself.
_MAX_WORKERS = 2


class Worker:
    """One warm process, started when needed and again after it had to be stopped."""

    def __init__(self) -> None:
        self._process: BaseProcess | None = None
        self._pipe: Connection | None = None

    def run(self, trial: Trial, limit_s: float = LIMIT_S) -> Result:
        """The result of a trial. Raises TimeoutError when it takes more than `limit_s` of processor time."""
        pipe = self._started()
        with tempfile.TemporaryDirectory(prefix="tiny-llm-") as folder:
            pipe.send((trial, Path(folder), limit_s))
            return self._answer(pipe, limit_s)

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.join()
        self._process = self._pipe = None

    def _started(self) -> Connection:
        if self._pipe is None:
            # A forked copy of a process in which MLX runs hangs.
            context = multiprocessing.get_context("spawn")
            self._pipe, theirs = context.Pipe()
            self._process = context.Process(target=serve, args=(theirs,), daemon=True)
            self._process.start()
            theirs.close()
            if not self._pipe.poll(_START_LIMIT_S):
                self.close()
                raise TimeoutError
            self._pipe.recv()
        return self._pipe

    def _answer(self, pipe: Connection, limit_s: float) -> Result:
        if not pipe.poll(limit_s * _WALL_FACTOR):
            self.close()
            raise TimeoutError
        try:
            result = pipe.recv()
        except EOFError:
            assert self._process is not None
            self._process.join()
            ran_out = self._process.exitcode == -signal.SIGXCPU
            self.close()
            if ran_out:
                raise TimeoutError from None
            return Result(error="the process that ran the tests died")
        assert isinstance(result, Result)
        return result


def run_trials(trials: Iterable[Trial], limit_s: float = LIMIT_S) -> Iterator[Result | TimeoutError]:
    """The results of many trials, in order, from a few workers at a time."""
    idle = queue.SimpleQueue[Worker]()
    workers = [Worker() for _ in range(min(_MAX_WORKERS, os.cpu_count() or 1))]
    for worker in workers:
        idle.put(worker)

    def one(trial: Trial) -> Result | TimeoutError:
        worker = idle.get()
        try:
            return worker.run(trial, limit_s)
        except TimeoutError as error:
            return error
        finally:
            idle.put(worker)

    try:
        with ThreadPoolExecutor(len(workers)) as pool:
            yield from pool.map(one, trials)
    finally:
        for worker in workers:
            worker.close()
