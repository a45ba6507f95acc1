"""Tensor parallelism: every rank computes with its part of each matrix (Shoeybi et al. 2019, 1909.08053)."""

import mlx.core as mx

from tiny_llm_lab.types import Checkpoint, ModelConfig, Weight

from .qwen import QwenModel

Span = tuple[int, int]


def shard_rows(w: Weight, start: int, end: int) -> Weight:
    """Outputs start to end of a layer: w [..., O, I] -> [..., end - start, I], a bias [O] -> [end - start].

    A copy, so that the whole matrix can go; packed weights stay packed.
    """
    raise NotImplementedError("task 3.10.3")


def shard_columns(w: Weight, start: int, end: int) -> Weight:
    """Inputs start to end of a layer: w [..., O, I] -> [..., O, end - start], a copy.

    Packed weights stay packed. Raises ValueError when `start` or `end` would cut one of their groups.
    """
    raise NotImplementedError("task 3.10.3")


def shard_heads(config: ModelConfig, rank: int, size: int) -> tuple[Span, Span]:
    """The query heads and the kv heads of `rank` of `size` ranks: two spans (start, end).

    Every rank has the same number of query heads, and all kv heads that these look at: its own if there
    are enough, else one that it shares with other ranks. Raises UserError when heads cannot be split so.
    """
    raise NotImplementedError("task 3.10.3")


def shard_inner(width: int, group_size: int, rank: int, size: int) -> Span:
    """The span of a feed-forward's `width` hidden numbers that `rank` computes, in whole groups.

    Shares differ by at most one group; pass a group_size of 1 for weights that are not packed. Raises
    UserError when there are fewer groups than ranks.
    """
    raise NotImplementedError("task 3.10.3")


def shard_checkpoint(checkpoint: Checkpoint, rank: int, size: int) -> Checkpoint:
    """What `rank` of `size` ranks needs of `checkpoint`: a checkpoint of a narrower model.

    Split by outputs: q, k and v (with their biases; by whole heads), gate and up. Split by inputs: o and
    down. Experts are split like the dense feed-forward, each over all ranks. Embedding, norms, router and
    head are whole on every rank. The configuration counts this rank's heads and hidden numbers;
    config.hidden_size stays. Raises UserError when the model cannot be split so, ValueError for a rank
    that is not in 0 to size - 1.
    """
    raise NotImplementedError("task 3.10.3")


def build_parallel_model(checkpoint: Checkpoint, group: mx.distributed.Group) -> QwenModel:
    """The model of `checkpoint` on this rank of `group`; every rank calls it, and then calls the model alike.

    Its logits are those of the whole model, the same on every rank, after two sums over all ranks a layer.
    An `Engine` on top must plan the same steps on every rank, and so not by a clock: no latency SLO, and
    all prompts there from the start.
    """
    raise NotImplementedError("task 3.10.4")
