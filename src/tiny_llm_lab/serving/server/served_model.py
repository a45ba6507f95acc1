"""A loaded model, ready to answer: what every route of the server works with."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Final, cast

from fastapi import Depends, Request

from tiny_llm_lab.runtime.models.recommended import recommended_sampling
from tiny_llm_lab.serving.async_engine.listener import EngineLink
from tiny_llm_lab.serving.async_engine.model import RunningModel, on_thread, run_model
from tiny_llm_lab.serving.options.engine_settings import ModelSettings
from tiny_llm_lab.serving.server.errors import ApiError
from tiny_llm_lab.serving.server.live.recorder import LiveView
from tiny_llm_lab.serving.server.metrics.engine_metrics import EngineMetrics
from tiny_llm_lab.serving.server.settings import ChatSettings, RequestLimits

_LOG: Final = logging.getLogger("tiny_llm.server")


@dataclass(frozen=True, kw_only=True)
class ServedModel(RunningModel):
    """A running model with its names, and the server's own settings for it."""

    names: tuple[str, ...]  # names that requests may use; answers give the first
    presets: Mapping[str, float] = field(default_factory=dict)  # sampling defaults from the checkpoint
    limits: RequestLimits = RequestLimits()
    chat: ChatSettings = ChatSettings()
    live: LiveView = field(default_factory=LiveView)
    metrics: EngineMetrics = field(default_factory=EngineMetrics)
    num_ranks: int = 1  # processes that compute the model together
    created_s: int = field(default_factory=lambda: int(time.time()))

    def require_name(self, name: str | None) -> None:
        """Raise ApiError 404 for a name that is not served; None is fine."""
        if name is not None and name not in self.names:
            here = ", ".join(self.names)
            message = f"the model {name!r} does not exist: this server has {here}: send one of these names"
            message += ", or serve it under yours with --served-model-name"
            raise ApiError(404, message, param="model", code="model_not_found")


async def start_model(
    settings: ModelSettings,
    names: Sequence[str] = (),
    limits: RequestLimits = RequestLimits(),
    chat: ChatSettings = ChatSettings(),
    live: LiveView | None = None,
    make_link: Callable[[ModelSettings], EngineLink] = on_thread,
) -> ServedModel:
    """Load the model and start its engine; `names` () is the model's own name.

    Raises UserError for a model or settings that cannot be served.
    """
    live, metrics = live or LiveView(), EngineMetrics()
    running = await run_model(make_link(settings), (live.recorder, metrics))
    if running.tokenizer.has_chat_template:
        facts = await asyncio.to_thread(lambda: running.tokenizer.template_facts)
        _LOG.log(logging.WARNING if facts.complaint else logging.INFO, f"chat template: {facts.line()}")
    return ServedModel(
        engine=running.engine,
        tokenizer=running.tokenizer,
        names=tuple(names) or (settings.model,),
        presets=recommended_sampling(running.facts.folder),
        limits=limits,
        chat=chat,
        live=live,
        metrics=metrics,
        num_ranks=settings.tensor_parallel_size,
    )


def _served(request: Request) -> ServedModel:
    return cast(ServedModel, request.app.state.served)


Served = Annotated[ServedModel, Depends(_served)]
