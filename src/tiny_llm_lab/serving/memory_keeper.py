"""Gives memory back between an engine's steps, when it is idle or the machine is short of memory."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import mlx.core as mx

from tiny_llm_lab.runtime.growing_pool import GrowingPool
from tiny_llm_lab.runtime.memory import MemoryPressure, NoPressure, Stage, memory_pressure
from tiny_llm_lab.types import OnStep, StepPlan, StepStats

if TYPE_CHECKING:
    from tiny_llm_ref import BlockPool, Engine, Scheduler

_LOG: Final = logging.getLogger("tiny_llm.memory")
_SAYS: Final[dict[Stage, str]] = {
    "none": "enough memory again",
    "low": "short of memory: cached prefixes are dropped, and requests start in blocks that exist already",
    "lasting": "still short of memory: new requests wait until the running ones end",
}


class MemoryKeeper:
    """Watches one engine, on the engine's thread."""

    def __init__(self, pressure: MemoryPressure | NoPressure | None = None) -> None:
        """`pressure` None is this machine's. Nothing happens before `watch`."""
        self._pressure = pressure or memory_pressure()
        self._engine: Engine | None = None
        self._pools: list[GrowingPool] = []
        self._told: Stage = "none"
        self._usual_seqs = 0

    @property
    def says(self) -> str | None:
        """What we do about a lack of memory, in one line; None while there is enough."""
        return None if self._told == "none" else self._line(self._told)

    def on_step(self, on_step: OnStep | None) -> OnStep:
        """An `on_step` for the engine to be watched, which calls the given one first."""

        def stepped(plan: StepPlan, stats: StepStats) -> None:
            if on_step is not None:
                on_step(plan, stats)
            self._stepped(stats)

        return stepped

    def watch(self, engine: Engine, pools: list[GrowingPool], max_num_seqs: int) -> None:
        """Begin. `pools` has its pool if it grows, a new one after a step that failed.

        `max_num_seqs` requests run at a time while there is enough memory.
        """
        self._engine, self._pools, self._usual_seqs = engine, pools, max_num_seqs

    def idle(self) -> float | None:
        """Call this when the engine has no requests; returns seconds until the next call, None for never."""
        if mx.default_device() != mx.cpu:
            mx.clear_cache()
        saved_s = self._engine.core.options.prefix_disk.idle() if self._engine else None
        self._relieve()
        return min((each for each in (saved_s, self._pressure.interval_s) if each is not None), default=None)

    def _stepped(self, stats: StepStats) -> None:
        if stats.num_running or stats.num_waiting:
            self._relieve()
        else:
            self.idle()

    def _relieve(self) -> None:
        if self._engine is None or (self._pressure.read() == "none" == self._told):
            return
        stage, core = self._pressure.stage, self._engine.core
        if stage != self._told:
            self._told = stage
            _LOG.warning(self._line(stage))
        num_seqs = self._usual_seqs
        if stage != "none":
            _drop_cached(core.scheduler.pool)
            running = core.scheduler.running
            for pool in self._pools:
                pool.cut_behind([block for each in running for block in each.block_ids])
            num_seqs = len(running) + (self._num_starting(core.scheduler) if stage == "low" else 0)
        # One request may always run, because other programs may never give their memory back.
        num_seqs = max(1, min(num_seqs, self._usual_seqs))
        if num_seqs != core.config.max_num_seqs:
            core.reconfigure(replace(core.config, max_num_seqs=num_seqs))

    def _num_starting(self, scheduler: Scheduler) -> int:
        """How many waiting requests have blocks for their known tokens without new memory."""
        pool, waiting = scheduler.pool, scheduler.waiting
        stored = min((each.num_stored for each in self._pools), default=pool.num_blocks)
        room = stored - (pool.num_blocks - pool.num_free)
        for count, sequence in enumerate(waiting):
            room -= sequence.num_tokens // pool.block_size + 1
            if room < 0:
                return count
        return len(waiting)

    def _line(self, stage: Stage) -> str:
        return f"{_SAYS[stage]} ({self._pressure.percent} % available)"


def _drop_cached(pool: BlockPool) -> None:
    """Drop what free blocks store, and take them in the order of their numbers again."""
    pool.free(sorted(pool.allocate(pool.num_free)))
