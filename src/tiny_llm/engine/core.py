"""The engine's core: plan a step, launch it, read it, commit it."""

from tiny_llm_lab.types import EngineOptions, PagedModel, SchedulerConfig
from tiny_llm_lab.types.computing.paged import PagedCache

from .request_state import RequestState


class EngineCore:
    """Requests on one model, one step at a time. Don't use it from two threads at once."""

    def __init__(
        self,
        model: PagedModel,
        config: SchedulerConfig = SchedulerConfig(),
        options: EngineOptions = EngineOptions(),
    ) -> None:
        """Allocate the blocks for keys and values; no requests yet.

        `EngineOptions` (tiny_llm_lab.types) says what its fields mean, and which of them belong to later
        tasks. types/scheduling/defaults.py has a default object for each option. With a proposer there is a
        `Speculation`, whose gate is the draft_gate or `AllDrafts`. Sets model, config, options, scheduler,
        kv_cache, prefix_cache (or None), spec_stats (or None), async_scheduling (whether steps may be
        launched early), and step_end_s, the time on the options' clock when the last step's tokens were read
        (0.0 before the first). Raises UserError like `EngineOptions.require_chunks`.
        """
        raise NotImplementedError("task 3.6.3")

    def reconfigure(self, config: SchedulerConfig) -> None:
        """Use `config` for the next steps. Raises UserError like `Scheduler.reconfigure` and `__init__`."""
        raise NotImplementedError("task 3.6.3")

    @property
    def has_requests(self) -> bool:
        """Whether any request waits or runs."""
        raise NotImplementedError("task 3.6.3")

    @property
    def kv_caches(self) -> list[PagedCache]:
        """The blocks of the model, and those of what drafts for it (from task 3.9.6 on)."""
        raise NotImplementedError("task 3.9.6")

    def admit(self, request: RequestState) -> None:
        """Queue a request. Raises UserError if it can never be served, or if its id is in use."""
        raise NotImplementedError("task 3.6.3")

    def advance(self) -> list[RequestState]:
        """Compute one step, in one forward pass and one evaluation; return the requests it served, in order.

        Returns [] if there are no requests. If anything raises, the core drops all requests, replaces the
        blocks, prefix cache and scheduler by empty ones, and raises the error again.
        """
        raise NotImplementedError("task 3.6.4")

    def abort(self, request_id: str) -> bool:
        """Drop a request in any state and free its blocks. Returns False if there is no such request.

        An answer that has not ended ends with finish_reason "abort".
        """
        raise NotImplementedError("task 3.6.3")

    def abort_all(self) -> None:
        """Drop all requests."""
        raise NotImplementedError("task 3.6.3")

    def release(self) -> None:
        """Drop all requests and free the memory. You can't use the engine afterwards."""
        raise NotImplementedError("task 3.6.3")
