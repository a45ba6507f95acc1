"""What an engine is built from besides its model and `SchedulerConfig`."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tiny_llm_lab.types.errors import UserError
from tiny_llm_lab.types.request import Clock
from tiny_llm_lab.types.scheduling.defaults import FixedBudget, is_async_scheduling
from tiny_llm_lab.types.scheduling.draft import AllDrafts, Proposer
from tiny_llm_lab.types.scheduling.engine import OnStep, SchedulerConfig
from tiny_llm_lab.types.scheduling.no_prefix_disk import NO_PREFIX_DISK, NoPrefixDisk

if TYPE_CHECKING:  # a solution's own class: types follow the reference
    from tiny_llm_ref import BudgetController


@dataclass(frozen=True)
class EngineOptions:
    """What an engine is built from besides model, tokenizer and `SchedulerConfig`. Fixed while it runs."""

    num_blocks: int = 512  # of the KV cache
    block_size: int = 16  # tokens of a block
    kv_bits: int | None = None  # of a stored number: 8, or None for the model's dtype
    enable_prefix_caching: bool = True
    num_states: int = 128  # of a hybrid's running requests and its prefix cache, ModelConfig.state_bytes each
    snapshot_every: int = 2048  # tokens after which a long text has one more; a multiple of block_size
    proposer: Proposer | None = None  # drafts tokens for decodes (from task 3.9.6 on); None = no drafts
    # Chooses the token budget of every step (from task 3.8.3 on); None = always max_num_batched_tokens.
    budget_controller: BudgetController | FixedBudget | None = None
    draft_gate: AllDrafts | None = None  # chooses the lengths of drafts (task 3.9.7); None = the longest
    # Launch a step of decodes before the previous step is read (from task 3.7.2 on); None = on a GPU.
    async_scheduling: bool | None = None
    on_step: OnStep | None = None  # called after every step with its plan and its `StepStats`
    clock: Clock = time.perf_counter
    prefix_disk: NoPrefixDisk = NO_PREFIX_DISK  # keeps prefixes when the process ends; the reference's alone

    @property
    def is_ahead(self) -> bool:
        """Whether steps may be launched early: not with a controller, which needs their times."""
        return is_async_scheduling(self.async_scheduling) and not self.is_paced

    @property
    def is_paced(self) -> bool:
        """Whether a controller sizes steps by time."""
        return bool(getattr(self.budget_controller, "is_paced", self.budget_controller is not None))

    def require_chunks(self, config: SchedulerConfig) -> None:
        """Raises UserError for a controller whose budget may be below every chunk that `config` allows."""
        if self.is_paced and (config.chunk_grid or not config.enable_chunked_prefill):
            raise UserError("a latency SLO sizes chunks: set chunk_grid to 0 and keep chunked prefill on")
