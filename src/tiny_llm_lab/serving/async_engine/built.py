"""From settings to an engine with everything that serves its requests."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from tiny_llm_lab.runtime.kv_memory import block_bytes
from tiny_llm_lab.runtime.models.text.tokenizer import CheckpointTokenizer
from tiny_llm_lab.runtime.structured.grammar_processor import GrammarProcessor
from tiny_llm_lab.runtime.structured.grammars import Grammars
from tiny_llm_lab.serving.async_engine.messages import EngineFacts
from tiny_llm_lab.serving.async_engine.reports import facts_of
from tiny_llm_lab.serving.building import load_and_build
from tiny_llm_lab.serving.memory_keeper import MemoryKeeper
from tiny_llm_lab.serving.options.engine_settings import ModelSettings
from tiny_llm_lab.types import OnStep, StructuredOutputs, UserError

if TYPE_CHECKING:
    from tiny_llm_lab.serving.pooling_engine import AnyEngine


class Forms(Protocol):
    """Compiles forms of answers, as `Grammars` does."""

    def require(self, form: StructuredOutputs, left: Future[None] | None = None) -> float: ...

    def compile(self, form: StructuredOutputs) -> GrammarProcessor: ...


@dataclass(frozen=True)
class BuiltEngine:
    """An engine, and what belongs to its model."""

    engine: AnyEngine
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
    checkpoint, config, size = loaded.checkpoint, loaded.model.config, settings.engine.block_size
    if not isinstance(checkpoint.tokenizer, CheckpointTokenizer):
        raise UserError(f"a server can't use the tokenizer of {settings.model}: choose another model")
    nbytes = block_bytes(config, checkpoint.dtype, size, settings.engine.kv_bits)
    facts = facts_of(engine, config, nbytes, checkpoint.path)
    facts = replace(facts, activation_bits=loaded.activation_bits)
    forms = Grammars(checkpoint.tokenizer, config.vocab_size, settings.engine.form_timeout_s)
    return BuiltEngine(engine, facts, forms, keeper, checkpoint.tokenizer)
