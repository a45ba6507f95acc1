"""The layers of a hybrid as one operator, in the steps whose states it can continue."""

from collections.abc import Sequence
from typing import cast

import mlx.core as mx

from tiny_llm_lab.types import DeltaState, LayerStack, Wanted
from tiny_llm_lab.types.computing.layer_stack import StepStates

from ..cache.memory import Memory
from ..cache.paged_states import StateLayer
from ..cache.state import BatchingState, SequenceState, no_state
from .stack_model import stacked

_State = SequenceState | BatchingState | StateLayer


def stacked_hybrid(
    stack: LayerStack, x: mx.array, cache: Sequence[Memory], wanted: Wanted
) -> mx.array | None:
    """As `stacked`, for a hybrid. Returns None also where a state is kept within the step, or for a draft."""
    entries: Sequence[object] = cache
    memories = [memory for memory in entries if isinstance(memory, _State)]
    before = [_states_before(memory, len(x)) for memory in memories]
    if not before or not all(before):
        return None
    batch, length, _ = x.shape
    first = memories[0]
    even = range(0, batch * length + 1, length)
    starts = first.layout.query_starts if isinstance(first, StateLayer) else even
    bound = stack.with_states(StepStates(before, list(starts)))
    keys_and_values = cast(list[Memory], [memory for memory in entries if not isinstance(memory, _State)])
    hidden = stacked(bound, x, keys_and_values, wanted)
    if hidden is not None:
        for memory, after in zip(memories, before, strict=True):
            _keep(memory, after, length)
    return hidden


def _states_before(memory: _State, num_rows: int) -> list[DeltaState]:
    """The state of each request; none if the step keeps more than the last one."""
    if isinstance(memory, BatchingState):
        return list(memory.states)
    if isinstance(memory, SequenceState):
        if memory.num_kept:
            return []
        return list(memory.states) if memory.offset else [no_state(memory.sizes)] * num_rows
    layout, sizes = memory.layout, memory.hybrid.delta_net
    if any(use.kept or use.num_drafted for use in layout.states):
        return []
    firsts = zip(layout.states, layout.query_starts[:-1], strict=True)
    return [
        memory.states.slots[use.slot] if layout.positions[first] else no_state(sizes) for use, first in firsts
    ]


def _keep(memory: _State, after: list[DeltaState], num_new_tokens: int) -> None:
    if isinstance(memory, StateLayer):
        slots = (use.slot for use in memory.layout.states)
        memory.states.slots.update(zip(slots, after, strict=True))
        return
    memory.states = after
    if isinstance(memory, BatchingState):
        memory.offset = [seen + num_new_tokens for seen in memory.offset]
    else:
        memory.offset += num_new_tokens
