"""A model whose layers are one operator, beside itself layer by layer."""

from itertools import pairwise

import mlx.core as mx
from tests.helpers.toy import random_tokens

from tiny_llm_lab.types import Wanted


class Watched:
    """A stack that notes of each call whether it took the step."""

    def __init__(self, stack):
        self.stack, self.calls = stack, []

    def with_states(self, states):
        bound = Watched(self.stack.with_states(states))
        bound.calls = self.calls
        return bound

    def __getattr__(self, name):
        def call(*args):
            made = getattr(self.stack, name)(*args)
            self.calls.append(made is not None)
            return made

        return call


def through_rows(llm, model, wanted, waits=()):
    """A prompt in chunks, then tokens of it beside another of another length: logits, and what is stored.

    Chunks that end at `waits` are not computed yet when the next begins.
    """
    tokens, one, other = random_tokens(1, 60), model.create_kv_cache(), model.create_kv_cache()
    steps = []
    for start, end in pairwise((0, 9, 14, 40)):
        steps.append(model(tokens[None, start:end], start, one, wanted=Wanted(last=wanted.last)))
        if end not in waits:
            mx.eval(steps)
    steps.append(model(tokens[None, :6], 0, other))
    mx.eval(steps)
    caches = [
        llm.BatchingState(3) if hasattr(layer, "states") else llm.BatchingKvCache(3, 60, model.ops)
        for layer in one
    ]
    for layer, *parts in zip(caches, one, other, strict=True):
        for part in parts:
            layer.add_request(part)
    for i in range(3):
        both = mx.stack([tokens[40 + i], tokens[6 + i]])[:, None]
        steps.append(model(both, caches[0].offsets(2), caches, wanted=Wanted(rows=wanted.rows)))
        mx.eval(steps)
    for layer in caches:
        if hasattr(layer, "states"):
            steps += [part for state in layer.states for part in state]
        else:
            steps += [part[:2, :, :9] for part in (layer.keys, layer.values)]
    return steps
