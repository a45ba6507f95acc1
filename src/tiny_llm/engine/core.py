"""The engine's core: plan a step, launch it, read it, commit it."""

from tiny_llm_lab.types import EngineOptions, PagedModel, SchedulerConfig

from .request_state import RequestState


class EngineCore:
    """Requests on one model, a step at a time; not to be used from two threads at once."""

    def __init__(
        self,
        model: PagedModel,
        config: SchedulerConfig = SchedulerConfig(),
        options: EngineOptions = EngineOptions(),
    ) -> None:
        """Allocate the blocks for keys and values; no requests yet.

        `EngineOptions` (tiny_llm_lab.types) says what its fields mean, and which of them are of later tasks.
        types/scheduling/defaults.py has an object for each option that is left out; a proposer makes a
        `Speculation`, whose gate is the draft_gate or `AllDrafts`. Sets model, config, options, scheduler,
        kv_cache, prefix_cache (or None), spec_stats (or None), async_scheduling (whether steps may be
        launched early), and step_end_s, the time on the options' clock at which the tokens of the last step
        were read (0.0 before the first). Raises UserError as `EngineOptions.require_chunks`.
        """
        raise NotImplementedError("task 3.6.3")

    def reconfigure(self, config: SchedulerConfig) -> None:
        """Schedule by `config` from the next step on; UserError as `Scheduler.reconfigure` and `__init__`."""
        raise NotImplementedError("task 3.6.3")

    @property
    def has_requests(self) -> bool:
        """Whether any request waits or runs."""
        raise NotImplementedError("task 3.6.3")

    def admit(self, request: RequestState) -> None:
        """Queue a request. Raises UserError when it can never be served, or its id is in use."""
        raise NotImplementedError("task 3.6.3")

    def advance(self) -> list[RequestState]:
        """Compute one step, in one forward pass and one evaluation; return the requests it served, in order.

        Returns [] without requests. When anything raises, all requests are dropped, empty blocks, prefix
        cache and scheduler replace the old ones, and the error is raised again.
        """
        raise NotImplementedError("task 3.6.4")

    def abort(self, request_id: str) -> bool:
        """Drop a request, whatever its state, and free its blocks; False when there is none.

        An answer that has not ended ends with finish_reason "abort".
        """
        raise NotImplementedError("task 3.6.3")

    def abort_all(self) -> None:
        """Drop all requests."""
        raise NotImplementedError("task 3.6.3")

    def release(self) -> None:
        """Drop all requests and give the memory back; the engine cannot be used afterwards."""
        raise NotImplementedError("task 3.6.3")
