"""A loaded model, ready to answer: what every route of the server works with."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from tiny_llm_lab.commands.engine_options import EngineSettings, build_engine
from tiny_llm_lab.commands.options import Loaded, load
from tiny_llm_lab.kv_memory import block_bytes
from tiny_llm_lab.models.config import read_json
from tiny_llm_lab.models.tokenizer import CheckpointTokenizer
from tiny_llm_lab.solution import load_serving
from tiny_llm_lab.structured.grammars import Grammars
from tiny_llm_lab.types import ModelConfig, OnStep, SchedulerConfig, UserError
from tiny_llm_lab.types.serving import Engine

from .async_engine import AsyncEngine
from .chat.settings import ChatSettings
from .errors import ApiError
from .listener import EngineListener
from .schemas.sampling import PRESETS


@dataclass(frozen=True)
class ModelSettings:
    """Which model is served, by which engine; the names are those of the flags."""

    model: str = "default"
    solution: str = "ref"
    device: str | None = None
    dtype: str | None = None
    threads: int | None = None
    activation_bits: int | None = None
    max_model_len: int | None = None  # None: the model's, SchedulerConfig.max_model_len at most
    engine: EngineSettings = EngineSettings()


@dataclass(frozen=True)
class RequestLimits:
    """What one request, and all of them together, may take of the server."""

    max_waiting: int = 1024  # requests in the queue, beyond those that run
    request_timeout_s: float = 0.0  # for the whole answer; 0 is none
    keep_alive_s: float = 5.0  # a stream without news gets a comment; 0 is never


@dataclass(frozen=True)
class ServedModel:
    """An engine that runs, and what is needed to put requests to it."""

    names: tuple[str, ...]  # that requests may use; answers tell the first
    engine: AsyncEngine
    tokenizer: CheckpointTokenizer
    model: ModelConfig
    config: SchedulerConfig  # at the start
    num_blocks: int
    block_size: int
    block_bytes: int
    grammars: Grammars
    presets: Mapping[str, float] = field(default_factory=dict)  # sampling that the checkpoint asks for
    limits: RequestLimits = RequestLimits()
    chat: ChatSettings = ChatSettings()
    created_s: int = field(default_factory=lambda: int(time.time()))

    @property
    def max_num_tokens(self) -> int:
        """The most tokens of prompt and answer together."""
        return min(self.config.max_model_len, self.num_blocks * self.block_size)

    def require_name(self, name: str | None) -> None:
        """Raise ApiError 404 for a name that is not served; None is fine."""
        if name is not None and name not in self.names:
            message = f"the model {name!r} does not exist: this server has {', '.join(self.names)}"
            raise ApiError(404, message, param="model", code="model_not_found")


async def start_model(
    settings: ModelSettings,
    names: Sequence[str] = (),
    listeners: Sequence[EngineListener] = (),
    limits: RequestLimits = RequestLimits(),
    chat: ChatSettings = ChatSettings(),
) -> ServedModel:
    """Load the model and start its engine; `names` () is the model's own name.

    Raises UserError for a model or settings that cannot be served.
    """
    builder = _Builder(settings)
    engine = AsyncEngine(builder, listeners)
    await engine.start()
    loaded, tokenizer = builder.loaded, builder.loaded.checkpoint.tokenizer
    if not isinstance(tokenizer, CheckpointTokenizer):
        raise UserError(f"{settings.model} has no tokenizer that a server can use: choose another model")
    pool = await engine.run(lambda running: running.scheduler.pool)
    return ServedModel(
        names=tuple(names) or (settings.model,),
        engine=engine,
        tokenizer=tokenizer,
        model=loaded.model.config,
        config=await engine.run(lambda running: running.config),
        num_blocks=pool.num_blocks,
        block_size=pool.block_size,
        block_bytes=block_bytes(
            loaded.model.config, loaded.checkpoint.dtype, pool.block_size, settings.engine.kv_bits
        ),
        grammars=Grammars(tokenizer, loaded.model.config.vocab_size),
        presets=_presets(loaded.checkpoint.path),
        limits=limits,
        chat=chat,
    )


def _presets(folder: Path) -> dict[str, float]:
    """What generation_config.json says of sampling; do_sample: false is greedy decoding."""
    file = folder / "generation_config.json"
    declared = read_json(file) if file.exists() else {}
    presets = {name: declared[name] for name in PRESETS if isinstance(declared.get(name), int | float)}
    return presets | ({"temperature": 0.0} if declared.get("do_sample") is False else {})


class _Builder:
    """Loads and builds on the thread that calls it: the engine's."""

    loaded: Loaded

    def __init__(self, settings: ModelSettings) -> None:
        self._settings = settings

    def __call__(self, on_step: OnStep) -> Engine:
        s = self._settings
        self.loaded = load(
            s.model, s.solution, s.device, s.dtype, s.threads, activation_bits=s.activation_bits
        )
        draft = None
        if s.engine.draft_model is not None:
            draft = load(s.engine.draft_model, s.solution, s.device, s.dtype).model
        limit = self.loaded.model.config.max_position_embeddings
        longest = s.max_model_len or min(limit, SchedulerConfig.max_model_len)
        if longest > limit:
            raise UserError(f"--max-model-len must be 1 to {limit} for this model, not {longest}")
        return build_engine(
            load_serving(s.solution),
            self.loaded.model,
            self.loaded.checkpoint.tokenizer,
            self.loaded.checkpoint.dtype,
            replace(s.engine, config=replace(s.engine.config, max_model_len=longest)),
            draft=draft,
            on_step=on_step,
        )
