"""How an engine uses a device's memory: one plan, from a configuration, a device and settings."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, cast

import mlx.core as mx

from tiny_llm_lab.runtime.kv_memory import AUTO, array_block_bytes, block_bytes, parse_memory
from tiny_llm_lab.runtime.memory import DeviceMemory, NotEnoughMemoryError, readable, require_fit
from tiny_llm_lab.runtime.native.device.chunk_ways import ROWS, ChunkWays
from tiny_llm_lab.runtime.pictures.picture import MOST_PATCHES
from tiny_llm_lab.serving.options.engine_settings import EngineSettings
from tiny_llm_lab.types import ModelConfig, UserError
from tiny_llm_lab.types.computing.paged import Slice
from tiny_llm_lab.types.scheduling.defaults import FixedBudget

if TYPE_CHECKING:
    from tiny_llm_ref import BudgetController
    from tiny_llm_ref.engine.scheduler import Scheduler

_STATES_SHARE: Final = 0.5  # of the memory for requests; the rest is for blocks, which are found together
_LEAST_SHARE: Final = 0.25  # of it, for states where long requests want blocks
_WISH: Final = 32_768  # tokens: a coding tool's first prompts have 7,000 to 25,000 and grow
_SCORES_SHARE: Final = 8  # of what is free; what attention would write out beyond that is computed otherwise
_FEWEST_ROWS: Final = 16  # of a step, however long the text is
_SCORED_ROWS: Final = 16  # of a prompt with logprobs at a time
_EXPERT_ROWS: Final = 512  # whose uses of experts the kernels compute at a time
# Measured, with our imports: Python and MLX, and what a tokenizer takes for each of its entries.
_PYTHON: Final = 80 * 2**20
_OF_ONE_ENTRY: Final = 576


@dataclass(frozen=True)
class MemoryPlan:
    """What an engine gets, in bytes and in what they buy. Numbers of states are 0 for a dense model."""

    process: int  # Python, MLX and the tokenizer
    weights: int  # that are still to be loaded
    step: int  # while a step is computed, beyond what stays: activations, logits, states, scores, copies
    scores: int  # of those, what attention writes out, such as scores; 0 where it writes none
    room: int  # for blocks and states
    block_size: int  # tokens
    block_bytes: int
    num_blocks: int
    state_bytes: int
    num_states: int  # of running requests and snapshots together
    snapshot_every: int  # tokens
    max_model_len: int  # tokens of one request

    @property
    def pool(self) -> int:
        """Bytes of all blocks."""
        return self.num_blocks * self.block_bytes

    @property
    def states(self) -> int:
        """Bytes of all states."""
        return self.num_states * self.state_bytes

    @property
    def total(self) -> int:
        """Bytes of everything."""
        return self.process + self.weights + self.step + self.pool + self.states

    def num_streams(self, num_tokens: int) -> int:
        """How many requests of `num_tokens` tokens run at a time."""
        if num_tokens > self.max_model_len:
            return 0
        blocks = self.num_blocks // -(-num_tokens // self.block_size)
        return min(blocks, self.num_states) if self.state_bytes else blocks


ROWS_BYTES: Final = 256 * 2**20  # of what a tower has read, kept for later requests


@dataclass(frozen=True)
class Planned:
    """Of what a plan is made: a model, and how it is to be served."""

    config: ModelConfig
    dtype: mx.Dtype
    settings: EngineSettings
    length: int | None = None  # tokens of a request, as it was asked for; None: as many as fit
    weights: int = 0  # bytes that are not loaded yet
    num_requests: int | None = None  # when there will never be more
    draft: ModelConfig | None = None  # of a draft model
    has_drafts: bool = False
    chunks: ChunkWays = field(default_factory=ChunkWays)  # what attention of chunks needs of a GPU

    def needs(self, rows: int, stored: int) -> list[float]:
        """Bytes beyond its results, of the fastest way for so many rows first."""
        return self.chunks.needs(self.config.num_attention_heads, self.config.head_dim, rows, stored)

    @property
    def stored(self) -> ModelConfig:
        """With one more layer of keys and values if a checkpoint's own layer drafts."""
        config = self.config
        if not self.settings.has_draft_layer:
            return config
        hybrid = config.hybrid and replace(config.hybrid, mixers=(*config.hybrid.mixers, "full_attention"))
        return replace(config, num_hidden_layers=config.num_hidden_layers + 1, hybrid=hybrid)

    @property
    def num_seqs(self) -> int:
        """Requests that may run at a time."""
        most = self.settings.config.max_num_seqs
        return min(most, self.num_requests or most)

    @property
    def block_bytes(self) -> int:
        """Of one block, with what a draft model stores of its tokens."""
        size, bits = self.settings.block_size, self.settings.kv_bits
        drafted = block_bytes(self.draft, self.dtype, size, bits) if self.draft else 0
        return block_bytes(self.stored, self.dtype, size, bits) + drafted

    @property
    def process(self) -> int:
        """Bytes of the process without any model."""
        return _PYTHON + self.config.vocab_size * _OF_ONE_ENTRY

    @property
    def state_bytes(self) -> int:
        """Of one state, with a hybrid draft model's; 0 for a dense model."""
        return self.config.state_bytes + (self.draft.state_bytes if self.draft else 0)

    @property
    def states_of_one(self) -> int:
        """States of a running request: its own, and while it has a draft the one before it."""
        return 2 if self.has_drafts else 1

    @property
    def fewest_states(self) -> int:
        """To serve one request: its states, and a snapshot that the next turn finds."""
        return self.states_of_one + self.settings.enable_prefix_caching

    def blocks_of(self, num_tokens: int) -> int:
        """How many blocks so many tokens take."""
        return -(-num_tokens // self.settings.block_size)

    @property
    def snapshot_every(self) -> int:
        """Tokens between two snapshots, by default as many as have keys and values that weigh one."""
        asked, size = self.settings.state_cache_interval, self.settings.block_size
        if asked is None:
            return size * max(1, -(-self.state_bytes // self.block_bytes))
        if asked < 1 or asked % size:
            raise UserError(f"--state-cache-interval must be a multiple of block_size {size}, not {asked}")
        return asked


def plan_memory(planned: Planned, here: DeviceMemory) -> MemoryPlan:
    """The plan of an engine on a device of which `here` is free, without loading anything.

    Blocks and states get what --kv-cache-memory says, or what a model may have of the memory. Half of it is
    for a hybrid's states, unless one request of `planned.length`, or of 32,768 tokens without, needs more
    blocks. Raises UserError for what does not fit, with the flag and the length that would.
    """
    require_fit("the weights", planned.weights, 0, "choose a smaller model, or a 4-bit one", here)
    plan = _plan(planned, here)
    if not _serves(plan, planned):
        raise NotEnoughMemoryError(_complaint(plan, planned, here))
    require_fit(
        f"{plan.num_blocks} blocks of {plan.block_size} tokens, a step and this process",
        plan.total,
        plan.num_blocks * _one_array(planned),
        "choose a smaller --kv-cache-memory, or --kv-cache-dtype int8",
        here,
    )
    return plan


def _plan(planned: Planned, here: DeviceMemory) -> MemoryPlan:
    """A plan that may serve nobody."""
    settings, limit = planned.settings, planned.config.max_position_embeddings
    room = parse_memory(settings.kv_cache_memory, replace(here, free=here.free - planned.weights))
    activations = _activations(planned, here, room) + pictures_bytes(planned.config, planned.dtype)
    scores = _scores(planned, here, room)
    # A step gathers keys and values of one layer on a GPU; when a pool grows half of an array is there twice.
    parts = planned.stored.num_kv_layers * (1 if here.is_gpu else 4)
    if settings.kv_cache_memory == AUTO:
        room = (room - activations - scores - planned.process) * parts // (parts + 1)
    num_states = _num_states(planned, here, room)
    num_blocks = _num_blocks(planned, here, room - num_states * planned.state_bytes)
    num_blocks = settings.num_blocks or num_blocks
    longest = planned.length or min(limit, num_blocks * settings.block_size)
    if not settings.config.enable_chunked_prefill:
        longest = min(longest, settings.config.max_num_batched_tokens)
    if settings.num_blocks is None:
        num_blocks = min(num_blocks, planned.num_seqs * planned.blocks_of(longest))
    copies = num_blocks * planned.block_bytes // parts
    return MemoryPlan(
        process=planned.process,
        weights=planned.weights,
        step=activations + scores + copies,
        room=max(0, room),
        scores=scores,
        block_size=settings.block_size,
        block_bytes=planned.block_bytes,
        num_blocks=num_blocks,
        state_bytes=planned.state_bytes,
        num_states=num_states,
        snapshot_every=planned.snapshot_every,
        max_model_len=longest,
    )


def _scores(planned: Planned, here: DeviceMemory, room: int) -> int:
    """What attention of a step may write out: as much as its fastest way would, up to a share of `room`."""
    if not here.is_gpu:
        return 0
    length = planned.length or planned.config.max_position_embeddings
    most = planned.settings.config.max_num_batched_tokens
    # Fewer rows may have another way.
    whole = max(planned.needs(rows, length)[0] for rows in (most, *(n - 1 for n in ROWS if 1 < n <= most)))
    return int(max(0, min(whole, max(min(planned.needs(_FEWEST_ROWS, length)), room // _SCORES_SHARE))))


def _activations(planned: Planned, here: DeviceMemory, room: int) -> int:
    """What a step computes with, beyond scores: rows of a layer and of logits, and a layer's new states."""
    config, size = planned.config, planned.dtype.size
    num_tokens = planned.settings.config.max_num_batched_tokens
    hidden, uses = config.hidden_size, config.num_experts_per_tok
    of_experts = uses * config.moe_intermediate_size
    inner = max(config.intermediate_size, config.shared_expert_intermediate_size)
    if here.is_gpu:
        inner = max(inner, of_experts)
    rows = num_tokens * (2 * hidden + max(3 * inner, hidden + _mixer_width(config))) * size
    # A request runs with one state, and without a draft, where there are no two.
    places = _num_states(planned, here, room) or room // planned.block_bytes
    running = max(1, min(planned.num_seqs, num_tokens, places))
    states = running * config.state_bytes // (config.hybrid.num_states if config.hybrid else 1)
    # Of each a copy too, where logprobs are asked for, or a part of a prompt's; what is drafted has its own.
    logits = max(2 * running, running + _SCORED_ROWS) * config.vocab_size * (2 if planned.has_drafts else 1)
    if here.is_gpu:  # its buffers are kept once they are free, as many as are in use
        # What experts give, in their order and in that of the tokens, and weighted by their shares.
        given = num_tokens * uses * hidden
        return 2 * (rows + logits * mx.float32.size + states + 4 * given * size)
    # Of each use of an expert: its row, the same as it is multiplied, and what is gated and raised.
    of_uses = min(num_tokens, _EXPERT_ROWS) * 2 * (uses * hidden + of_experts) * size
    return rows + logits * size + states + of_uses


def pictures_bytes(config: ModelConfig, dtype: mx.Dtype) -> int:
    """What pictures take: rows that are kept, and the tower's work on the largest one."""
    if (tower := config.pictures) is None:
        return 0
    return ROWS_BYTES + MOST_PATCHES * 8 * tower.hidden_size * dtype.size


def _mixer_width(config: ModelConfig) -> int:
    """Numbers of a token between the two ends of the mixer that has most."""
    attention = (2 * config.num_attention_heads + 2 * config.num_key_value_heads) * config.head_dim
    if config.hybrid is None:
        return attention
    net = config.hybrid.delta_net  # its inputs, the same after the convolution, a gate and the output
    return max(attention, 2 * (net.conv_dim + net.value_dim))


def _num_states(planned: Planned, here: DeviceMemory, room: int) -> int:
    one, settings = planned.state_bytes, planned.settings
    if one == 0:
        return 0
    asked = int(_STATES_SHARE * room)
    if settings.state_cache_memory != AUTO:
        asked = parse_memory(settings.state_cache_memory, here)
        if asked >= room > 0:
            raise UserError(
                f"--state-cache-memory is {readable(asked)} of {readable(max(0, room))} for blocks and "
                "states: choose a smaller one"
            )
    running = planned.num_seqs * planned.states_of_one
    # No text has more snapshots than this, however much memory there is.
    found = room // planned.block_bytes * settings.block_size // planned.snapshot_every + planned.num_seqs
    most = running + (found if settings.enable_prefix_caching else 0)
    count = min(asked // one, most)
    wish = min(planned.length or _WISH, planned.config.max_position_embeddings)
    left = room - planned.blocks_of(wish) * planned.block_bytes
    if settings.state_cache_memory == AUTO:
        # Without a length that was asked for, several requests run too.
        least = int(_LEAST_SHARE * room) // one if planned.length is None else 0
        count = min(count, max(least, left // one))
    return max(planned.fewest_states, count)


def _num_blocks(planned: Planned, here: DeviceMemory, room: int) -> int:
    count = max(0, room) // planned.block_bytes
    if planned.settings.kv_cache_memory == AUTO and here.largest_array is not None:
        count = min(count, here.largest_array // _one_array(planned))
    return count


def _one_array(planned: Planned) -> int:
    """Bytes of one block in one array."""
    settings = planned.settings
    return array_block_bytes(planned.config, planned.dtype, settings.block_size, settings.kv_bits)


def _serves(plan: MemoryPlan, planned: Planned) -> bool:
    """Whether there are blocks for one request, unless their number was given."""
    asked = planned.length or plan.block_size
    return plan.num_blocks * plan.block_size >= asked or planned.settings.num_blocks is not None


def _longest(planned: Planned, here: DeviceMemory) -> int:
    """The most tokens, whole blocks, of a request that fits; a shorter one needs less of everything."""
    size = planned.settings.block_size

    def is_too_long(num_blocks: int) -> bool:
        shorter = replace(planned, length=num_blocks * size)
        return not _serves(_plan(shorter, here), shorter)

    return bisect(range(1, (planned.length or 0) // size + 1), False, key=is_too_long) * size


def _complaint(plan: MemoryPlan, planned: Planned, here: DeviceMemory) -> str:
    """One line: what is missing, how long a request could be, and which flag would make it fit."""
    if plan.room == 0:
        return (
            f"the weights take {readable(planned.weights)} and a step {readable(plan.step)}, so of "
            f"{readable(here.free)} nothing is left for keys and values: choose a smaller model, fewer bits, "
            "or a smaller --max-num-batched-tokens"
        )
    asked, states = planned.length or plan.block_size, planned.fewest_states * plan.state_bytes
    text = (
        f"one request of {asked:,} tokens takes {readable(planned.blocks_of(asked) * plan.block_bytes)} of "
        f"keys and values{f' and {readable(states)} of states' if states else ''}, and {readable(plan.room)} "
        f"are there{' for both' if states else ''}: "
    )
    cures = [f"--max-model-len {fits} would fit"] if (fits := _longest(planned, here)) else []
    if planned.settings.kv_cache_memory != AUTO:
        cures.append("raise --kv-cache-memory")
    if planned.has_drafts:
        cures.append("leave out --speculate")
    if planned.settings.kv_bits is None:
        cures.append("try --kv-cache-dtype int8")
    return text + ", or ".join(cures or ["choose a smaller model, or fewer bits"])


class ChunkBound(FixedBudget):
    """A token budget for steps whose attention writes scores out: what `plan` has room for, at most."""

    def __init__(self, plan: MemoryPlan, planned: Planned, inner: BudgetController | None) -> None:
        """`inner` chooses a budget, None: always max_num_batched_tokens. Sets is_paced, whether it does."""
        self.is_paced = inner is not None
        self._plan, self._planned, self._inner = plan, planned, inner or FixedBudget()
        self._most = planned.settings.config.max_num_batched_tokens
        self._grid = planned.settings.config.chunk_grid

    def token_budget(
        self, now_s: float, scheduler: object, last_token_s: Callable[[str], float]
    ) -> int | None:
        """As `BudgetController`. A decode has one row, and always its place."""
        queue = cast("Scheduler", scheduler)
        budget = self._inner.token_budget(now_s, queue, last_token_s) or self._most
        running = queue.running
        # What a waiting request finds in the prefix cache is not known yet, so it may be all of it.
        ends = [each.num_tokens for each in queue.waiting[:1]]
        ends += [min(each.num_computed_tokens + budget, each.num_tokens) for each in running]
        needs = self._planned.needs(budget, max(ends, default=1))
        bound = budget if min(needs) <= self._plan.scores else int(budget * self._plan.scores / max(needs))
        return min(budget, max(bound, len(running) + max(1, self._grid)))

    def record(self, slices: Sequence[Slice], seconds: float) -> None:
        """As `BudgetController`."""
        self._inner.record(slices, seconds)
