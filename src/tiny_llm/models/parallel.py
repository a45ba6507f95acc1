"""Tensor parallelism: each rank computes with its part of every matrix (Shoeybi et al. 2019, 1909.08053)."""

import mlx.core as mx

from tiny_llm_lab.types import Checkpoint, ModelConfig, Weight

from .model import Qwen

Span = tuple[int, int]


def shard_rows(w: Weight, start: int, end: int) -> Weight:
    """Returns a copy of outputs start to end of a layer: w [..., O, I] -> [..., end - start, I].

    A bias [O] becomes [end - start]. The copy lets the whole matrix be freed. Packed weights stay packed.
    """
    raise NotImplementedError("task 3.10.3")


def shard_columns(w: Weight, start: int, end: int) -> Weight:
    """Returns a copy of inputs start to end of a layer: w [..., O, I] -> [..., O, end - start].

    Packed weights stay packed. Raises ValueError if `start` or `end` would cut one of their groups.
    """
    raise NotImplementedError("task 3.10.3")


def shard_heads(config: ModelConfig, rank: int, size: int) -> tuple[Span, Span]:
    """Returns two spans (start, end): the query heads and the kv heads of `rank` of `size` ranks.

    Every rank has the same number of query heads, and all kv heads that they read. If there are enough kv
    heads, a rank has its own; otherwise it shares one with other ranks. Raises UserError if the heads can't
    be split this way.
    """
    raise NotImplementedError("task 3.10.3")


def shard_inner(width: int, group_size: int, rank: int, size: int) -> Span:
    """Returns the span of a feed-forward's `width` hidden numbers that `rank` computes, in whole groups.

    Shares differ by at most one group. For weights that are not packed, pass group_size 1. Raises UserError
    if there are fewer groups than ranks.
    """
    raise NotImplementedError("task 3.10.3")


def shard_checkpoint(checkpoint: Checkpoint, rank: int, size: int) -> Checkpoint:
    """Returns the part of `checkpoint` that `rank` of `size` ranks needs: a checkpoint of a narrower model.

    q, k and v (with their biases, by whole heads), gate and up are split by outputs; o and down by inputs.
    Experts are split like the dense feed-forward, each over all ranks. Embedding, norms, router and output
    head are whole on every rank. The configuration counts this rank's heads and hidden numbers;
    config.hidden_size stays the same. Raises UserError if the model can't be split this way, and ValueError
    for a rank that is not in 0 to size - 1.
    """
    raise NotImplementedError("task 3.10.3")


def build_parallel_model(checkpoint: Checkpoint, group: mx.distributed.Group) -> Qwen:
    """Returns this rank's model of `checkpoint`. Every rank of `group` calls this, then the model, alike.

    Every rank gets the logits of the whole model, after two sums over all ranks in each layer. An `Engine`
    on top must plan the same steps on every rank, so it can't plan by a clock: use no latency SLO, and
    pass all prompts at the start.
    """
    raise NotImplementedError("task 3.10.4")
