"""The last few hundred events of an engine, for pages to draw, and the settings that a page may change."""

import asyncio
import itertools
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tiny_llm_lab.serving.async_engine.engine import AsyncEngine
from tiny_llm_lab.serving.async_engine.listener import AddedRequest, EngineListener
from tiny_llm_lab.serving.async_engine.messages import EngineFacts, Queues, StepReport
from tiny_llm_lab.serving.server.prompts.reuse import Reuse
from tiny_llm_lab.types import EngineOutput, SchedulerConfig

MAX_EVENTS: Final = 1024


def changeable(config: SchedulerConfig) -> dict[str, object]:
    """The settings that a page may change."""
    return {name: getattr(config, name) for name in ("enable_chunked_prefill", "max_num_batched_tokens")}


Event = dict[str, Any]  # as sent; its "type" is config, added, explained, step, sampled or left


class StepRecorder(EngineListener):
    """A ring of events, on one event loop.

    Requests are numbered from 1 in the order of their arrival, as their ids are their clients' own.
    """

    def __init__(self, max_events: int = MAX_EVENTS) -> None:
        self._ring: deque[Event] = deque(maxlen=max_events)
        self._num_events = 0  # ever appended
        self._zero_s = time.perf_counter()
        self._count = itertools.count(1)
        self._numbers: dict[str, int] = {}  # the numbers of the engine's requests, by id
        self._requests: dict[int, Event] = {}  # their "added" events, by number
        self._decoding: set[str] = set()  # requests with a first token, which compute no more prompt tokens
        self._config: Event = {}

    def since(self, position: int) -> tuple[list[Event], int]:
        """The stored events after `position`, and the position after them; 0 is all."""
        num_new = min(self._num_events - position, len(self._ring))
        return list(itertools.islice(self._ring, len(self._ring) - num_new, None)), self._num_events

    def snapshot(self) -> tuple[list[Event], int]:
        """The events that describe the engine as it is now, and the position after them."""
        return [self._config, *self._requests.values()], self._num_events

    # What the engine tells.

    def started(self, facts: EngineFacts) -> None:
        self._size = facts.block_size
        for name in list(self._numbers):  # in an engine that has died, and their clients had gone
            self._left(name)
        self.configured(facts.config)

    def configured(self, config: SchedulerConfig) -> None:
        self._config = {"type": "config"} | changeable(config)
        self._append(self._config)

    def added(self, request: AddedRequest, queues: Queues) -> None:
        number = self._numbers[request.request_id] = next(self._count)
        event = {"type": "added", "request": number, "prompt_tokens": request.num_prompt_tokens}
        self._requests[number] = event
        self._append(event)

    def stepped(self, report: StepReport) -> None:
        """Record a step: in "parts" are [request, tokens, whether it decodes], in "blocks" [request, blocks
        held, those of them that the prefix cache had]."""
        plan, stats, numbers, decoding = report.plan, report.stats, self._numbers, self._decoding
        if plan.preempted:
            decoding.difference_update(plan.preempted)
        # A request without a number was aborted during the step.
        event = {
            "type": "step",
            "start_ms": round(1000 * (stats.start_s - self._zero_s), 3),
            "end_ms": round(1000 * (stats.end_s - self._zero_s), 3),
            "budget": report.budget,
            "parts": [
                (numbers[name], count, name in decoding)
                for name, count in plan.num_scheduled_tokens.items()
                if name in numbers
            ],
            "blocks": [
                (numbers[owner], num_blocks, num_cached // self._size)
                for owner, num_blocks, num_cached in report.held
                if owner in numbers
            ],
            "waiting": stats.num_waiting,
            "free": stats.num_free_blocks,
        }
        if report.disk.num_hit_tokens:
            event["disk"] = report.disk.num_hit_tokens
        if report.disk.num_pictures or report.disk.num_picture_hits:
            event["pictures"] = (report.disk.num_pictures, report.disk.num_picture_hits)
        if report.cache.num_snapshots:
            event["snapshots"] = report.cache.num_snapshots
        self._append(event)

    def produced(self, outputs: Sequence[EngineOutput]) -> None:
        numbers, sampled = self._numbers, []
        for each in outputs:
            if each.token_ids and each.request_id in numbers:
                sampled.append((numbers[each.request_id], len(each.token_ids)))
                self._decoding.add(each.request_id)
        self._append({"type": "sampled", "tokens": sampled})
        for each in outputs:
            if each.completion is not None:
                self._left(each.request_id)

    def explained(self, request_id: str, client: str, reuse: Reuse) -> None:
        """Record why a prompt was computed, without a word of it."""
        if request_id in self._numbers:
            self._append({"type": "explained", "request": self._numbers[request_id], "text": reuse.says})

    def aborted(self, request_id: str, queues: Queues) -> None:
        self._left(request_id)

    def _left(self, request_id: str) -> None:
        self._decoding.discard(request_id)
        if (number := self._numbers.pop(request_id, None)) is not None:
            del self._requests[number]
            self._append({"type": "left", "request": number})

    def _append(self, event: Event) -> None:
        self._ring.append(event)
        self._num_events += 1


class LiveControls:
    """Changes a running engine's configuration for a page."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._chunked_budget: int | None = None  # the budget with chunked prefill, kept while it is off

    async def apply(
        self,
        engine: AsyncEngine,
        enable_chunked_prefill: bool | None = None,
        max_num_batched_tokens: int | None = None,
    ) -> SchedulerConfig:
        """Change the given settings, starting with the next step; None leaves one as it is.

        Without chunked prefill a prompt takes one step, so the budget is max_model_len at least; the budget
        asked for counts again when it is on. Raises UserError for a budget that the engine cannot take.
        """
        async with self._lock:
            now = engine.config
            is_chunked = (
                now.enable_chunked_prefill if enable_chunked_prefill is None else enable_chunked_prefill
            )
            budget = max_num_batched_tokens or self._chunked_budget or now.max_num_batched_tokens
            room = budget if is_chunked else max(budget, now.max_model_len)
            config = await engine.reconfigure(is_chunked, room)
            self._chunked_budget = budget
            return config


@dataclass(frozen=True)
class LiveView:
    """The recorder, a listener of the engine, and whether pages may change the engine."""

    has_controls: bool = False
    recorder: StepRecorder = field(default_factory=StepRecorder)
    controls: LiveControls = field(default_factory=LiveControls)
