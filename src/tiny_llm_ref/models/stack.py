"""All layers of a model as one operator, planned, started and ended once a step, not once a layer."""

from collections.abc import Sequence

import mlx.core as mx

from tiny_llm_lab.types import LayerStack, Memory, Wanted
from tiny_llm_lab.types.computing.layer_stack import StackStep, StepStates


def stacked(stack: LayerStack, x: mx.array, cache: Sequence[Memory], wanted: Wanted) -> mx.array | None:
    """Runs all layers on x [B, L, E] -> [rows, n, E]; updates the memories in `cache`, one for each layer.

    In the last layer only the rows and tokens of `wanted` continue. If no layer has storage yet, they get the
    stack's storage. Returns None, and stores nothing, if the layers must run one at a time: without a cache,
    if a memory does not `enter`, if the layers differ in what they store, and while storage is computed.
    """
    step = StackStep(x)
    if not cache or not all(memory.enter(step) for memory in cache):
        return None
    out = _run(stack, step, wanted)
    if out is not None:
        for memory in cache:
            memory.leave(step)
    return out


def _run(stack: LayerStack, step: StackStep, wanted: Wanted) -> mx.array | None:
    x = step.x
    if step.states:
        batch, length, _ = x.shape
        starts = step.starts or range(0, batch * length + 1, length)
        stack = stack.with_states(StepStates(step.states, list(starts)))
    if step.pages is not None:
        return stack.over_pages(x, *step.pages, wanted)
    offsets, are_new = step.offsets[0], [not keys.size for keys in step.keys]
    if any(each != offsets for each in step.offsets) or any(are_new) != all(are_new):
        return None
    made = (
        stack.over_new_rows(x, wanted)
        if all(are_new)
        else stack.over_rows(x, offsets, step.keys, step.values, wanted)
    )
    if made is None:
        return None
    out, step.keys, step.values = made
    return out
