"""A loaded model with a running engine: all you need to send it requests."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tiny_llm_lab.runtime.kv_memory import block_bytes
from tiny_llm_lab.runtime.models.text.tokenizer import CheckpointTokenizer
from tiny_llm_lab.runtime.structured.grammars import Grammars
from tiny_llm_lab.serving.async_engine.engine import AsyncEngine
from tiny_llm_lab.serving.async_engine.listener import EngineListener
from tiny_llm_lab.serving.building import load_and_build
from tiny_llm_lab.serving.memory_keeper import MemoryKeeper
from tiny_llm_lab.serving.options.engine_settings import ModelSettings
from tiny_llm_lab.serving.options.model_options import Loaded
from tiny_llm_lab.types import ModelConfig, OnStep, SchedulerConfig, UserError
from tiny_llm_lab.types.scheduling.serving import Engine

_QUICK: Final = 2000  # characters that are encoded in less than a millisecond


@dataclass(frozen=True, kw_only=True)
class RunningModel:
    """A running engine, and what belongs to its model."""

    engine: AsyncEngine
    tokenizer: CheckpointTokenizer
    grammars: Grammars
    model: ModelConfig
    config: SchedulerConfig  # at the start
    num_blocks: int
    block_size: int
    block_bytes: int
    num_snapshots: int = 0
    folder: Path = Path()  # of the checkpoint
    keeper: MemoryKeeper = field(default_factory=MemoryKeeper)
    # Threads of their own, so that nothing else waits for long prompts.
    encoders: Executor = field(default_factory=lambda: ThreadPoolExecutor(2, "encode"))

    @property
    def max_num_tokens(self) -> int:
        """The most tokens of prompt and answer together."""
        return min(self.config.max_model_len, self.num_blocks * self.block_size)

    async def encode(self, text: str) -> list[int]:
        """The tokens of `text`; long ones are computed on a thread. UserError for invalid Unicode."""
        if len(text) <= _QUICK:
            return self.tokenizer.encode(text)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self.encoders, self.tokenizer.encode, text)


async def run_model(settings: ModelSettings, listeners: Sequence[EngineListener] = ()) -> RunningModel:
    """Load the model and start its engine. Raises UserError for a model or settings that cannot be served."""
    keeper = MemoryKeeper()
    builder = _Builder(settings, keeper)
    engine = AsyncEngine(builder, listeners, keeper.idle)
    await engine.start()
    loaded, tokenizer = builder.loaded, builder.loaded.checkpoint.tokenizer
    if not isinstance(tokenizer, CheckpointTokenizer):
        raise UserError(f"a server can't use the tokenizer of {settings.model}: choose another model")
    config = loaded.model.config
    pool = await engine.run(lambda running: running.core.scheduler.pool)
    cache = await engine.run(lambda running: running.core.prefix_cache)
    return RunningModel(
        engine=engine,
        tokenizer=tokenizer,
        grammars=Grammars(tokenizer, config.vocab_size),
        model=config,
        config=await engine.run(lambda running: running.core.config),
        num_blocks=pool.num_blocks,
        block_size=pool.block_size,
        block_bytes=block_bytes(config, loaded.checkpoint.dtype, pool.block_size, settings.engine.kv_bits),
        num_snapshots=cache.snapshots.capacity if cache else 0,
        folder=loaded.checkpoint.path,
        keeper=keeper,
    )


class _Builder:
    """Loads and builds on the thread that calls it, which is the engine's."""

    loaded: Loaded

    def __init__(self, settings: ModelSettings, keeper: MemoryKeeper) -> None:
        self._settings, self._keeper = settings, keeper

    def __call__(self, on_step: OnStep) -> Engine:
        self.loaded, engine = load_and_build(self._settings, on_step, keeper=self._keeper)
        return engine
