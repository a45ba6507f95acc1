"""What an engine has done and is doing, as data."""

from __future__ import annotations

import os
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from tiny_llm_lab.serving.async_engine import messages
from tiny_llm_lab.types import ModelConfig, StepPlan, StepStats

if TYPE_CHECKING:
    from tiny_llm_lab.serving.pooling_engine import AnyEngine
    from tiny_llm_ref.cache.prefix_cache import PrefixCache
    from tiny_llm_ref.engine.core import EngineCore


def facts_of(
    engine: AnyEngine, model: ModelConfig, block_bytes: int = 0, folder: Path = Path()
) -> messages.EngineFacts:
    """What does not change while `engine`, which this process computes, serves `model`."""
    core = engine.core
    pool, cache = core.scheduler.pool, core.prefix_cache
    return messages.EngineFacts(
        model=model,
        config=core.config,
        num_blocks=pool.num_blocks,
        block_size=pool.block_size,
        block_bytes=block_bytes,
        num_states=core.options.num_states if model.hybrid else 0,
        has_prefix_cache=cache is not None,
        folder=folder,
        pid=os.getpid(),
    )


class Reports:
    """Reports on one engine."""

    def __init__(self, engine: AnyEngine) -> None:
        self._engine = engine
        self._generations = count()
        self._generation = next(self._generations)
        self._cache: PrefixCache | None = engine.core.prefix_cache

    def queues(self) -> messages.Queues:
        """Between two steps."""
        scheduler, num_held = self._engine.core.scheduler, self._engine.core.options.prefix_disk.num_held
        return messages.Queues(
            len(scheduler.running), len(scheduler.waiting) + num_held, scheduler.pool.num_free
        )

    def step(self, plan: StepPlan, stats: StepStats) -> messages.StepReport:
        """Of a step that the engine's `on_step` tells about."""
        core = self._engine.core
        running, disk = core.scheduler.running, core.options.prefix_disk
        if disk.num_held:
            stats = replace(stats, num_waiting=stats.num_waiting + disk.num_held)
        return messages.StepReport(
            plan,
            stats,
            core.config.max_num_batched_tokens,
            tuple((each.request_id, len(each.block_ids), each.num_cached_tokens) for each in running),
            self._cache_counts(core.prefix_cache),
            _draft_counts(core),
            replace(disk.counts),  # it changes
        )

    def _cache_counts(self, cache: PrefixCache | None) -> messages.CacheCounts:
        if cache is not self._cache:
            self._cache, self._generation = cache, next(self._generations)
        if cache is None:
            return messages.CacheCounts(self._generation)
        result = cache.snapshots
        return messages.CacheCounts(
            self._generation,
            cache.num_query_tokens,
            cache.num_hit_tokens,
            len(result),
            result.num_used,
            result.num_evicted,
        )


def _draft_counts(core: EngineCore) -> messages.DraftCounts:
    if (spec := core.spec_stats) is None:
        return messages.DraftCounts()
    return messages.DraftCounts(spec.num_drafts, spec.num_draft_tokens, spec.num_accepted_tokens)
