"""What the pages of one server share."""

import asyncio
from dataclasses import dataclass, field, replace

from tiny_llm_lab.serving.async_engine.engine import AsyncEngine
from tiny_llm_lab.serving.server.live.recorder import StepRecorder
from tiny_llm_lab.types import SchedulerConfig


class LiveControls:
    """Changes what a page may change of a running engine's configuration."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._chunked_budget: int | None = None  # with chunked prefill, while it is off

    async def apply(
        self,
        engine: AsyncEngine,
        enable_chunked_prefill: bool | None = None,
        max_num_batched_tokens: int | None = None,
    ) -> SchedulerConfig:
        """Schedule by what is given from the next step on; None leaves it as it is.

        Without chunked prefill a prompt takes one step, so the budget is max_model_len at least; the budget
        asked for counts again when it is on. Raises UserError for a budget that the engine cannot take.
        """
        async with self._lock:
            now = await engine.run(lambda running: running.core.config)
            is_chunked = (
                now.enable_chunked_prefill if enable_chunked_prefill is None else enable_chunked_prefill
            )
            budget = max_num_batched_tokens or self._chunked_budget or now.max_num_batched_tokens
            config = replace(now, enable_chunked_prefill=True, max_num_batched_tokens=budget)
            if not is_chunked:
                room = max(budget, now.max_model_len)
                config = replace(config, enable_chunked_prefill=False, max_num_batched_tokens=room)
            await engine.reconfigure(config)
            self._chunked_budget = budget
            return config


@dataclass(frozen=True)
class LiveView:
    """The recorder, a listener of the engine, and whether pages may change the engine."""

    has_controls: bool = False
    recorder: StepRecorder = field(default_factory=StepRecorder)
    controls: LiveControls = field(default_factory=LiveControls)
