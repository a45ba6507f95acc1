"""Processes that stay for many trials: what they import, they import once."""

import multiprocessing
import os
import queue
import signal
import tempfile
import threading
from collections.abc import Sequence
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

from tiny_llm_lab.course.checking.sandbox import run_trials
from tiny_llm_lab.course.checking.worker import Result, Trial, serve_many

_MAX_PROCESSES = 2  # MLX uses several threads itself
# To begin takes as long as this many trials: a second process for fewer would make both late.
_TRIALS_TO_BEGIN = 10
_WALL_FACTOR = 10  # for a trial that waits forever without computing anything


def results_of(trials: Sequence[Trial], pool: "TrialPool", limit_s: float) -> list[Result | TimeoutError]:
    """The results in the order of `trials`: from `pool` where Python alone is changed, which is the fastest.

    A process keeps the kernels that it has compiled and loaded: each other trial has one of its own.
    """
    is_python = [all(name.endswith(".py") for name in trial.changed) for trial in trials]
    pairs = list(zip(trials, is_python, strict=True))
    pooled = iter(pool.run([trial for trial, is_py in pairs if is_py]))
    alone = run_trials([trial for trial, is_py in pairs if not is_py], limit_s)
    return [next(pooled if is_py else alone) for is_py in is_python]


class TrialPool:
    """Runs trials that change Python files alone, a fifth of a second each once its processes have begun.

    Trials of one process follow each other: what one leaves behind outside of the package, the next one sees.
    """

    def __init__(self, limit_s: float) -> None:
        """Start one process; do not wait for it. A trial takes at most `limit_s` of processor time."""
        self._folder = tempfile.TemporaryDirectory(prefix="tiny-llm-")
        num_processes = min(_MAX_PROCESSES, os.cpu_count() or 1)
        self._members = [_Member(Path(self._folder.name) / str(i), limit_s) for i in range(num_processes)]
        self._members[0].start()

    def run(self, trials: Sequence[Trial]) -> list[Result | TimeoutError]:
        """The results in the order of `trials`; TimeoutError for one above its limit."""
        results: list[Result | TimeoutError] = [TimeoutError() for _ in trials]
        jobs: queue.SimpleQueue[int] = queue.SimpleQueue()
        for i in range(len(trials)):
            jobs.put(i)

        def work(member: _Member) -> None:
            try:
                while True:
                    i = jobs.get_nowait()
                    results[i] = member.result(trials[i])
            except queue.Empty:
                return

        members = self._members[: 1 + len(trials) // _TRIALS_TO_BEGIN]
        threads = [threading.Thread(target=work, args=(member,), daemon=True) for member in members]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return results

    def close(self) -> None:
        """End the processes; may be called twice."""
        for member in self._members:
            member.stop()
        self._folder.cleanup()


class _Member:
    """One process, started anew after a trial that ended it."""

    def __init__(self, folder: Path, limit_s: float) -> None:
        self._folder, self._limit_s = folder, limit_s
        self._process: BaseProcess | None = None
        self._trials: Connection | None = None

    def result(self, trial: Trial) -> Result | TimeoutError:
        if self._process is None or self._trials is None:
            self.start()
        process, trials = self._process, self._trials
        assert process is not None and trials is not None
        try:
            trials.send(trial)
            if not trials.poll(self._limit_s * _WALL_FACTOR):
                self.stop()
                return TimeoutError()
            result = trials.recv()
            assert isinstance(result, Result)
            return result
        except (EOFError, OSError):
            process.join()
            self.stop()
            is_above_limit = process.exitcode == -signal.SIGXCPU
            return TimeoutError() if is_above_limit else Result(error="the process that ran the tests died")

    def stop(self) -> None:
        if self._process is not None and self._trials is not None:
            self._trials.close()
            self._process.kill()
            self._process.join()
        self._process = self._trials = None

    def start(self) -> None:
        # A fork of a process in which MLX runs hangs.
        context = multiprocessing.get_context("spawn")
        self._trials, theirs = context.Pipe()
        args = (theirs, self._folder, self._limit_s)
        self._process = context.Process(target=serve_many, args=args, daemon=True)
        self._process.start()
        theirs.close()
