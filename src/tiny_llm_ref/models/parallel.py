"""Tensor parallelism: each rank computes with its part of every matrix (Shoeybi et al. 2019, 1909.08053)."""

from dataclasses import replace
from functools import partial

import mlx.core as mx

from tiny_llm_lab.runtime.native import kernels, laid_out
from tiny_llm_lab.types import Checkpoint, ModelConfig, QuantizedWeights, UserError, Weight

from .ops_model import OpsModel
from .qwen import QwenModel

Span = tuple[int, int]


def shard_rows(w: Weight, start: int, end: int) -> Weight:
    """Returns a copy of outputs start to end of a layer: w [..., O, I] -> [..., end - start, I].

    A bias [O] becomes [end - start]. The copy lets the whole matrix be freed. Packed weights stay packed.
    """
    if isinstance(w, QuantizedWeights):
        return w.mapped(lambda part: mx.contiguous(part[..., start:end, :]))
    return mx.contiguous(w[start:end] if w.ndim == 1 else w[..., start:end, :])


def shard_columns(w: Weight, start: int, end: int) -> Weight:
    """Returns a copy of inputs start to end of a layer: w [..., O, I] -> [..., O, end - start].

    Packed weights stay packed. Raises ValueError if `start` or `end` would cut one of their groups.
    """
    if not isinstance(w, QuantizedWeights):
        return mx.contiguous(w[..., start:end])
    if start % w.group_size or end % w.group_size:
        raise ValueError(f"inputs {start} to {end} cut a group of {w.group_size}")
    words = slice(start * w.bits // 32, end * w.bits // 32)
    groups = slice(start // w.group_size, end // w.group_size)
    return w.mapped(lambda part: mx.contiguous(part[..., words if part is w.weight else groups]))


def shard_heads(config: ModelConfig, rank: int, size: int) -> tuple[Span, Span]:
    """Returns two spans (start, end): the query heads and the kv heads of `rank` of `size` ranks.

    Every rank has the same number of query heads, and all kv heads that they read. If there are enough kv
    heads, a rank has its own; otherwise it shares one with other ranks. Raises UserError if the heads can't
    be split this way.
    """
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    if heads % size or (kv_heads % size and size % kv_heads):
        raise UserError(
            f"{heads} query and {kv_heads} kv heads cannot be split over {size} ranks: "
            "choose a size that divides the query heads, and divides the kv heads or is a multiple of them"
        )
    each, shared = heads // size, heads // kv_heads
    start = rank * each
    return (start, start + each), (start // shared, (start + each - 1) // shared + 1)


def shard_inner(width: int, group_size: int, rank: int, size: int) -> Span:
    """Returns the span of a feed-forward's `width` hidden numbers that `rank` computes, in whole groups.

    Shares differ by at most one group. For weights that are not packed, pass group_size 1. Raises UserError
    if there are fewer groups than ranks.
    """
    groups = width // group_size
    if groups < size:
        raise UserError(f"{size} ranks cannot share {groups} groups of {group_size} weights: use fewer ranks")
    return groups * rank // size * group_size, groups * (rank + 1) // size * group_size


def shard_checkpoint(checkpoint: Checkpoint, rank: int, size: int) -> Checkpoint:
    """Returns the part of `checkpoint` that `rank` of `size` ranks needs: a checkpoint of a narrower model.

    q, k and v (with their biases, by whole heads), gate and up are split by outputs; o and down by inputs.
    Experts are split like the dense feed-forward, each over all ranks. Embedding, norms, router and output
    head are whole on every rank. The configuration counts this rank's heads and hidden numbers;
    config.hidden_size stays the same. Raises UserError if the model can't be split this way, and ValueError
    for a rank that is not in 0 to size - 1.
    """
    if not 0 <= rank < size:
        raise ValueError(f"rank must be 0 to {size - 1}, not {rank}")
    if size == 1:
        return checkpoint
    config, weights = checkpoint.config, checkpoint.weights
    heads, kv_heads = shard_heads(config, rank, size)
    inner = _inner(checkpoint, ".mlp.down_proj.weight", config.intermediate_size, rank, size)
    expert = _inner(checkpoint, "switch_mlp.down_proj.weight", config.moe_intermediate_size, rank, size)
    queries, keys = _times(heads, config.head_dim), _times(kv_heads, config.head_dim)
    _check_groups(checkpoint, queries, size)
    spans = {"q_proj": queries, "k_proj": keys, "v_proj": keys, "o_proj": queries}
    spans |= {"mlp": inner, "switch_mlp": expert}
    narrower = replace(
        config,
        num_attention_heads=heads[1] - heads[0],
        num_key_value_heads=kv_heads[1] - kv_heads[0],
        intermediate_size=inner[1] - inner[0],
        moe_intermediate_size=expert[1] - expert[0],
    )
    parts = {name: _part(name, w, spans) for name, w in weights.items()}
    mx.eval([_arrays(w) for w in parts.values()])
    return replace(checkpoint, config=narrower, weights=parts)


def build_parallel_model(checkpoint: Checkpoint, group: mx.distributed.Group) -> QwenModel:
    """Returns this rank's model of `checkpoint`. Every rank of `group` calls this, then the model, alike.

    Every rank gets the logits of the whole model, after two sums over all ranks in each layer. An `Engine`
    on top must plan the same steps on every rank, so it can't plan by a clock: use no latency SLO, and
    pass all prompts at the start.
    """
    part = shard_checkpoint(checkpoint, group.rank(), group.size())
    all_sum = None if group.size() == 1 else partial(_all_sum, group)
    ops = kernels(__package__, part.weights)
    if ops is None:
        return QwenModel(part.config, part.weights, all_sum)
    return OpsModel(part.config, laid_out(ops, dict(part.weights)), ops, all_sum)


def _all_sum(group: mx.distributed.Group, x: mx.array) -> mx.array:
    # If there are no tokens (`Wanted(last=0)`) there is nothing to send.
    return mx.distributed.all_sum(x, group=group) if x.size else x


def _part(name: str, w: Weight, spans: dict[str, Span]) -> Weight:
    module, _, projection = name.rpartition(".")[0].rpartition(".")
    if projection in ("gate_proj", "up_proj"):
        return shard_rows(w, *spans[module.rpartition(".")[2]])
    if projection == "down_proj":
        return shard_columns(w, *spans[module.rpartition(".")[2]])
    if projection == "o_proj":
        return shard_columns(w, *spans[projection])
    return shard_rows(w, *spans[projection]) if projection in spans else w


def _inner(checkpoint: Checkpoint, ending: str, width: int, rank: int, size: int) -> Span:
    downs = [w for name, w in checkpoint.weights.items() if name.endswith(ending)]
    groups = [w.group_size if isinstance(w, QuantizedWeights) else 1 for w in downs]
    return shard_inner(width, max(groups), rank, size) if downs else (0, width)


def _check_groups(checkpoint: Checkpoint, span: Span, size: int) -> None:
    """Raises UserError if `size` ranks would cut a group, as they may if a head is narrower than a group."""
    for name, w in checkpoint.weights.items():
        is_cut = isinstance(w, QuantizedWeights) and (span[1] - span[0]) % w.group_size
        if name.endswith("o_proj.weight") and is_cut:
            raise UserError(f"{size} ranks would cut groups of {name}: use fewer ranks, or smaller groups")


def _times(span: Span, factor: int) -> Span:
    return span[0] * factor, span[1] * factor


def _arrays(w: Weight) -> tuple[mx.array, ...]:
    if not isinstance(w, QuantizedWeights):
        return (w,)
    return (w.weight, w.scales) if w.biases is None else (w.weight, w.scales, w.biases)
