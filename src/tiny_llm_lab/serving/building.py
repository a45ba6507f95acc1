"""Builds an engine, for `LLM`, `AsyncLLM`, the server, batches, chat, benchmarks and traces."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, cast

from tiny_llm_lab.runtime.growing_pool import GrowingModel, GrowingPool
from tiny_llm_lab.runtime.memory import device_memory, set_limits
from tiny_llm_lab.runtime.models.loading import config_of
from tiny_llm_lab.runtime.native.device.chunk_ways import ChunkWays
from tiny_llm_lab.runtime.solution import Serving, load_serving
from tiny_llm_lab.runtime.steps.calibration import calibrate
from tiny_llm_lab.runtime.steps.step_budget import step_budget
from tiny_llm_lab.serving.drafting import drafting, require_draft
from tiny_llm_lab.serving.memory_keeper import MemoryKeeper
from tiny_llm_lab.serving.memory_plan import ChunkBound, MemoryPlan, Planned, plan_memory
from tiny_llm_lab.serving.options.engine_options import default_budget
from tiny_llm_lab.serving.options.engine_settings import EngineSettings, ModelSettings, served_length
from tiny_llm_lab.serving.options.model_options import Loaded, load
from tiny_llm_lab.serving.picture_queue import picture_queue
from tiny_llm_lab.serving.pooling_engine import PoolingEngine
from tiny_llm_lab.serving.prefix_disk.building import prefix_disk
from tiny_llm_lab.types import EngineOptions, Model, OnStep, PagedModel, Proposer, UserError

if TYPE_CHECKING:
    from tiny_llm_lab.serving.pooling_engine import AnyEngine
    from tiny_llm_ref import BudgetController, Engine


def require_length(settings: ModelSettings) -> None:
    """Raise UserError for a length that the model cannot have. No weights are made or downloaded for it."""
    if settings.max_model_len is not None:
        served_length(settings.max_model_len, config_of(settings.model).max_position_embeddings)


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
    require_length(settings)
    loaded, draft = load(settings, has_pictures=not settings.engine.language_model_only), None
    if loaded.checkpoint.config.task != "generate" and settings.engine.speculate != "off":
        raise UserError("drafts are for models that generate text: leave out --speculate")
    if settings.engine.draft_model is not None:
        drafter = replace(
            settings, model=settings.engine.draft_model, threads=None, task="generate", tensor_parallel_size=1
        )
        require_draft(drafting_model := load(drafter, is_draft=True), loaded)
        draft = drafting_model.model
    config = settings.engine.config
    if settings.max_model_len is not None:
        config = replace(config, max_model_len=settings.max_model_len)
    if settings.fits_steps and device_memory().can_be_wired:
        _planned(loaded, settings.engine).needs(1, 1)  # no step that is timed waits for a self-test
        budget = step_budget(llm, loaded.model, loaded.checkpoint)
        config = replace(config, max_num_batched_tokens=default_budget(budget, asdict(config)))
    engine = replace(settings.engine, config=config, fits_length=settings.max_model_len is None)
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
    Memory is as `plan_memory` says; there are no more blocks than requests can fill: those that run at a
    time, or `num_requests` when there will never be more. Blocks get their memory when they are first used.
    `keeper` watches the engine; None: one of its own.
    """
    pools: list[GrowingPool] = []
    model, drafts = drafting(llm, loaded, settings, draft, pools)
    keeper, disk = keeper or MemoryKeeper(), prefix_disk(loaded, settings)
    planned = _planned(loaded, settings, num_requests, draft, proposer)
    plan = plan_memory(planned, device_memory())
    set_limits(plan.step)
    config = replace(settings.config, max_model_len=plan.max_model_len)
    whole, controller = cast(PagedModel, model), _controller(llm, loaded.model, plan, planned)
    pictures = picture_queue(loaded, whole, disk, controller)
    outside = pictures or disk
    options = EngineOptions(
        num_blocks=plan.num_blocks,
        block_size=settings.block_size,
        kv_bits=settings.kv_bits,
        enable_prefix_caching=settings.enable_prefix_caching,
        num_states=plan.num_states,
        snapshot_every=plan.snapshot_every,
        proposer=proposer or drafts,
        budget_controller=pictures or controller,
        draft_gate=llm.DraftGate() if settings.draft_gate and settings.speculate != "off" else None,
        async_scheduling=settings.async_scheduling,
        on_step=keeper.on_step(disk.on_step(on_step)),
        prefix_disk=outside,
    )
    computes = GrowingModel(whole, pools) if settings.num_blocks is None else whole
    engine = llm.Engine(computes, loaded.checkpoint.tokenizer, config, options)
    keeper.watch(engine, pools, config.max_num_seqs)
    outside.watch(engine, pools)
    return engine


def _planned(
    loaded: Loaded,
    settings: EngineSettings,
    num_requests: int | None = None,
    draft: Model | None = None,
    proposer: Proposer | None = None,
) -> Planned:
    return Planned(
        loaded.model.config,
        loaded.checkpoint.dtype,
        settings,
        length=None if settings.fits_length else settings.config.max_model_len,
        num_requests=num_requests,
        draft=draft.config if draft else None,
        has_drafts=proposer is not None or settings.speculate != "off",
        chunks=getattr(loaded.model.ops, "chunks", ChunkWays()),
    )


def _controller(
    llm: Serving, model: Model, plan: MemoryPlan, planned: Planned
) -> BudgetController | ChunkBound | None:
    settings, controller = planned.settings, None
    planned.chunks.most = plan.scores
    if settings.itl_slo_ms is not None:
        step_time = llm.StepTimeModel(calibrate(model, llm, block_size=settings.block_size))
        controller = llm.BudgetController(llm.LatencyPolicy(step_time, settings.itl_slo_ms / 1000))
    return ChunkBound(plan, planned, controller) if plan.scores else controller
