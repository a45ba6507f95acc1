"""From settings to an engine with everything that serves its requests."""

import os
from dataclasses import dataclass
from typing import Protocol

from tiny_llm_lab.runtime.kv_memory import block_bytes
from tiny_llm_lab.runtime.models.text.tokenizer import CheckpointTokenizer
from tiny_llm_lab.runtime.structured.grammar_processor import GrammarProcessor
from tiny_llm_lab.runtime.structured.grammars import Grammars
from tiny_llm_lab.serving.async_engine.messages import EngineFacts
from tiny_llm_lab.serving.building import load_and_build
from tiny_llm_lab.serving.memory_keeper import MemoryKeeper
from tiny_llm_lab.serving.options.engine_settings import ModelSettings
from tiny_llm_lab.types import OnStep, StructuredOutputs, UserError
from tiny_llm_lab.types.scheduling.serving import Engine


class Forms(Protocol):
    """Compiles forms of answers."""

    def processor(self, form: StructuredOutputs) -> GrammarProcessor: ...


@dataclass(frozen=True)
class BuiltEngine:
    """An engine, and what belongs to its model."""

    engine: Engine
    facts: EngineFacts
    forms: Forms
    keeper: MemoryKeeper
    tokenizer: CheckpointTokenizer


def built_from(settings: ModelSettings, on_step: OnStep) -> BuiltEngine:
    """Load and build, on the thread that will step the engine, as MLX binds arrays to it.

    Raises UserError for a model or settings that cannot be served.
    """
    keeper = MemoryKeeper()
    loaded, engine = load_and_build(settings, on_step, keeper=keeper)
    checkpoint, config, core = loaded.checkpoint, loaded.model.config, engine.core
    if not isinstance(checkpoint.tokenizer, CheckpointTokenizer):
        raise UserError(f"a server can't use the tokenizer of {settings.model}: choose another model")
    pool, cache = core.scheduler.pool, core.prefix_cache
    facts = EngineFacts(
        model=config,
        config=core.config,
        num_blocks=pool.num_blocks,
        block_size=pool.block_size,
        block_bytes=block_bytes(config, checkpoint.dtype, pool.block_size, settings.engine.kv_bits),
        num_snapshots=cache.snapshots.capacity if cache else 0,
        has_prefix_cache=cache is not None,
        folder=checkpoint.path,
        pid=os.getpid(),
    )
    forms = Grammars(checkpoint.tokenizer, config.vocab_size)
    return BuiltEngine(engine, facts, forms, keeper, checkpoint.tokenizer)
