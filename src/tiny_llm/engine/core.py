"""The engine's core: plan a step, launch it, read it, commit it."""

import time

from tiny_llm_lab.types import Clock, DraftGate, OnStep, PagedModel, Proposer, SchedulerConfig
from tiny_llm_lab.types.scheduling.serving import BudgetController

from .request_state import RequestState


class EngineCore:
    """Requests on one model, a step at a time; not to be used from two threads at once."""

    def __init__(
        self,
        model: PagedModel,
        config: SchedulerConfig = SchedulerConfig(),
        *,
        num_blocks: int = 512,
        block_size: int = 16,
        kv_bits: int | None = None,
        enable_prefix_caching: bool = True,
        proposer: Proposer | None = None,
        budget_controller: BudgetController | None = None,
        draft_gate: DraftGate | None = None,
        async_scheduling: bool | None = None,
        on_step: OnStep | None = None,
        clock: Clock = time.perf_counter,
    ) -> None:
        """Allocate `num_blocks` blocks of `block_size` tokens for keys and values; no requests yet.

        `kv_bits` 8 stores them in 8 bits (None: in the model's dtype). `proposer` (from task 3.8.6 on) drafts
        tokens for decodes (None: no speculation), and `draft_gate` (from task 3.8.7 on) chooses the drafts
        that are verified (None: all). `budget_controller` (from task 3.7.3 on) chooses every step's token
        budget (None: always config.max_num_batched_tokens). `async_scheduling` (from task 3.6.8 on) launches
        a step of decodes before the tokens of the step before are read, None does so on a GPU; a proposer or
        a controller needs these tokens and turns it off, as processors do in the steps of their
        requests. `on_step` is called after every step with its plan and `StepStats`. Sets config, scheduler,
        kv_cache, prefix_cache (or None), spec_stats (or None), async_scheduling and step_end_s, the time on
        `clock` at which the tokens of the last step were read (0.0 before the first). Raises UserError for a
        controller together with chunk_grid or without chunked prefill: its budget may be smaller than any
        chunk that the scheduler could then take.
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
