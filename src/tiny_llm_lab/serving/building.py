"""Builds an engine, for `LLM`, `AsyncLLM`, the server, batches, chat, benchmarks and traces."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, cast

import mlx.core as mx

from tiny_llm_lab.runtime.growing_pool import GrowingModel
from tiny_llm_lab.runtime.kv_memory import engine_num_blocks, snapshot_interval, state_memory
from tiny_llm_lab.runtime.memory import device_memory
from tiny_llm_lab.runtime.solution import Serving, load_serving
from tiny_llm_lab.runtime.steps.calibration import calibrate
from tiny_llm_lab.runtime.steps.step_budget import step_budget
from tiny_llm_lab.serving.drafting import drafting, with_draft_layer
from tiny_llm_lab.serving.memory_keeper import MemoryKeeper
from tiny_llm_lab.serving.options.engine_options import default_budget
from tiny_llm_lab.serving.options.engine_settings import EngineSettings, ModelSettings, served_length
from tiny_llm_lab.serving.options.model_options import Loaded, load
from tiny_llm_lab.serving.pooling_engine import PoolingEngine
from tiny_llm_lab.serving.prefix_disk.building import prefix_disk
from tiny_llm_lab.serving.prefix_disk.prefix_disk import PrefixDisk
from tiny_llm_lab.types import EngineOptions, Model, ModelConfig, OnStep, PagedModel, Proposer, UserError

if TYPE_CHECKING:
    from tiny_llm_lab.serving.pooling_engine import AnyEngine
    from tiny_llm_ref import BudgetController, Engine


def load_and_build(
    settings: ModelSettings,
    on_step: OnStep | None = None,
    proposer: Proposer | None = None,
    keeper: MemoryKeeper | None = None,
) -> tuple[Loaded, AnyEngine]:
    """Load the model and its draft model, and build an engine for requests of the model's length.

    Raises UserError for a model or a setting that cannot be served.
    """
    llm = load_serving(settings.solution)  # before anything is downloaded: a solution may have no engine
    loaded, draft = load(settings), None
    if loaded.checkpoint.config.task != "generate" and settings.engine.speculate != "off":
        raise UserError("drafts are for models that generate text: leave out --speculate")
    if settings.engine.draft_model is not None:
        drafter = replace(
            settings, model=settings.engine.draft_model, threads=None, task="generate", tensor_parallel_size=1
        )
        draft = load(drafter, is_draft=True).model
    longest = served_length(settings.max_model_len, loaded.model.config.max_position_embeddings)
    config = replace(settings.engine.config, max_model_len=longest)
    if settings.fits_steps and device_memory().can_be_wired:
        budget = step_budget(llm, loaded.model, loaded.checkpoint)
        config = replace(config, max_num_batched_tokens=default_budget(budget, asdict(config)))
    engine = replace(settings.engine, config=config)
    built = build_engine(llm, loaded, engine, draft=draft, proposer=proposer, on_step=on_step, keeper=keeper)
    return loaded, built if loaded.checkpoint.config.task == "generate" else PoolingEngine(built)


def build_engine(
    llm: Serving,
    loaded: Loaded,
    settings: EngineSettings,
    *,
    num_requests: int | None = None,
    draft: Model | None = None,
    proposer: Proposer | None = None,
    on_step: OnStep | None = None,
    keeper: MemoryKeeper | None = None,
) -> Engine:
    """The engine of `llm`; with an SLO steps are timed first, which takes seconds.

    `draft` is the model that settings.draft_model names; `proposer` drafts in place of settings.speculate.
    However much memory is allowed, the engine gets no more blocks than its requests can fill: those that run
    at a time, or `num_requests` when there will never be more. `keeper` watches the engine; None: one of its
    own. On Metal the blocks get their memory when they are first used. A hybrid without room for a
    snapshot has no prefix cache.
    """
    checkpoint, config = loaded.checkpoint, settings.config
    model, drafts, before_draft = drafting(llm, loaded, settings, draft)
    keeper, disk = keeper or MemoryKeeper(), prefix_disk(loaded, settings)
    has_drafts = proposer is not None or settings.speculate != "off"
    options = replace(
        _memory(model.config, checkpoint.dtype, settings, num_requests, has_drafts),
        proposer=proposer or drafts,
        before_draft=before_draft,
        budget_controller=_controller(llm, loaded.model, settings),
        draft_gate=llm.DraftGate() if settings.draft_gate and settings.speculate != "off" else None,
        async_scheduling=settings.async_scheduling,
        on_step=keeper.on_step(disk.on_step(on_step)),
        prefix_disk=disk,
    )
    whole = cast(PagedModel, model)
    growing = GrowingModel(whole)
    grows = device_memory().can_be_wired and settings.num_blocks is None and not model.config.hybrid
    engine = llm.Engine(growing if grows else whole, checkpoint.tokenizer, config, options)
    keeper.watch(engine, growing.pools, config.max_num_seqs)
    if isinstance(disk, PrefixDisk):
        disk.watch(engine, growing.pools)
    return engine


def _memory(
    config: ModelConfig, dtype: mx.Dtype, settings: EngineSettings, num_requests: int | None, has_drafts: bool
) -> EngineOptions:
    """Options with blocks for keys and values, and with room for the states of a hybrid."""
    scheduler = settings.config
    states = state_memory(
        config,
        min(scheduler.max_num_seqs, num_requests or scheduler.max_num_seqs),
        settings.kv_cache_memory,
        settings.state_cache_memory if settings.enable_prefix_caching else None,
        has_drafts=has_drafts,
    )
    stored = with_draft_layer(config) if settings.speculate == "mtp" else config
    shape, kv_bits = (stored, dtype, settings.block_size), settings.kv_bits
    memory = settings.kv_cache_memory
    return EngineOptions(
        num_blocks=settings.num_blocks
        or engine_num_blocks(*shape, scheduler, memory, kv_bits, num_requests, states_bytes=states.nbytes),
        block_size=settings.block_size,
        kv_bits=kv_bits,
        enable_prefix_caching=settings.enable_prefix_caching and states.has_cache,
        num_snapshots=states.num_snapshots,
        snapshot_every=snapshot_interval(*shape, settings.state_cache_interval, kv_bits),
    )


def _controller(llm: Serving, model: Model, settings: EngineSettings) -> BudgetController | None:
    if settings.itl_slo_ms is None:
        return None
    step_time = llm.StepTimeModel(calibrate(model, llm, block_size=settings.block_size))
    return llm.BudgetController(llm.LatencyPolicy(step_time, settings.itl_slo_ms / 1000))
