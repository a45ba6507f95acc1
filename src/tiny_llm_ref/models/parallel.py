"""Tensor parallelism: each rank computes with its part of every matrix (Shoeybi et al. 2019, 1909.08053)."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import mlx.core as mx

from tiny_llm_lab.runtime.native import delta_kernel, kernels, laid_out
from tiny_llm_lab.types import Checkpoint, HybridConfig, ModelConfig, QuantizedWeights, UserError, Weight

from .array_ops import ArrayOps, array_delta
from .model import Qwen
from .ranks import Ranks

Span = tuple[int, int]


class _Cut(NamedTuple):
    """What a rank keeps of a parameter."""

    spans: Sequence[Span]  # of its outputs; of its inputs if `is_inner`, then a single one
    is_inner: bool = False


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
    From task 4.3.7 on: queries of gated attention go with their gates. A rank has some key heads of every
    delta net, with their value heads and channels of the convolution. A shared expert is split like the
    others, and its gate is whole.
    """
    if not 0 <= rank < size:
        raise ValueError(f"rank must be 0 to {size - 1}, not {rank}")
    if size == 1:
        return checkpoint
    config, hybrid = checkpoint.config, checkpoint.config.hybrid
    heads, kv_heads = shard_heads(config, rank, size)
    widths = {"mlp": config.intermediate_size, "switch_mlp": config.moe_intermediate_size}
    widths["shared_expert"] = config.shared_expert_intermediate_size
    inner = {module: _inner(checkpoint, module, width, rank, size) for module, width in widths.items()}
    dim, narrow = config.head_dim, None
    cuts = {
        f"{module}.{part}_proj": _Cut([span]) for module, span in inner.items() for part in ("gate", "up")
    }
    cuts |= {f"{module}.down_proj": _Cut([span], is_inner=True) for module, span in inner.items()}
    cuts |= {name: _Cut([_times(kv_heads, dim)]) for name in ("k_proj", "v_proj")}
    cuts["q_proj"] = _Cut([_times(heads, dim if hybrid is None else 2 * dim)])
    cuts["o_proj"] = _Cut([_times(heads, dim)], is_inner=True)
    if hybrid is not None:
        keys = _key_heads(hybrid, rank, size)
        cuts |= _delta_net_cuts(hybrid, keys)
        narrow = _narrower(hybrid, _width(keys))
    narrower = replace(
        config,
        num_attention_heads=_width(heads),
        num_key_value_heads=_width(kv_heads),
        intermediate_size=_width(inner["mlp"]),
        moe_intermediate_size=_width(inner["switch_mlp"]),
        shared_expert_intermediate_size=_width(inner["shared_expert"]),
        hybrid=narrow,
    )
    parts = {name: _part(name, w, cuts) for name, w in checkpoint.weights.items()}
    mx.eval([_arrays(w) for w in parts.values()])
    return replace(checkpoint, config=narrower, weights=parts)


def build_parallel_model(checkpoint: Checkpoint, group: mx.distributed.Group) -> Qwen:
    """Returns this rank's model of `checkpoint`. Every rank of `group` calls this, then the model, alike.

    Every rank gets the logits of the whole model, after two sums over all ranks in each layer. An `Engine`
    on top must plan the same steps on every rank, so it can't plan by a clock: use no latency SLO, and
    pass all prompts at the start.
    """
    part = shard_checkpoint(checkpoint, group.rank(), group.size())
    ops = kernels(__package__, part.weights) or ArrayOps()
    kernel = delta_kernel(__package__, array_delta) if part.config.hybrid else None
    weights = laid_out(ops, dict(part.weights))
    return Qwen(part.config, weights, ops, ranks=Ranks(group), delta_kernel=kernel)


def _part(name: str, w: Weight, cuts: dict[str, _Cut]) -> Weight:
    module, _, own = name.removesuffix(".weight").removesuffix(".bias").rpartition(".")
    cut = cuts.get(f"{module.rpartition('.')[2]}.{own}") or cuts.get(own)
    if cut is None:
        return w
    if not cut.is_inner:
        return _rows(w, cut.spans)
    (span,) = cut.spans
    if isinstance(w, QuantizedWeights) and _width(span) % w.group_size:
        raise UserError(f"the ranks would cut groups of {name}: use fewer ranks, or smaller groups")
    return shard_columns(w, *span)


def _rows(w: Weight, spans: Sequence[Span]) -> Weight:
    if len(spans) == 1:
        return shard_rows(w, *spans[0])
    rows = mx.concatenate([mx.arange(*span) for span in spans])
    if isinstance(w, QuantizedWeights):
        return w.mapped(lambda part: mx.take(part, rows, axis=-2))
    return mx.take(w, rows, axis=max(0, w.ndim - 2))


def _inner(checkpoint: Checkpoint, module: str, width: int, rank: int, size: int) -> Span:
    downs = [w for name, w in checkpoint.weights.items() if name.endswith(f".{module}.down_proj.weight")]
    groups = [w.group_size if isinstance(w, QuantizedWeights) else 1 for w in downs]
    return shard_inner(width, max(groups), rank, size) if downs else (0, width)


def _key_heads(hybrid: HybridConfig, rank: int, size: int) -> Span:
    count = hybrid.delta_net.num_key_heads
    if count % size:
        raise UserError(
            f"{count} key heads of a delta net cannot be split over {size} ranks: "
            "choose a size that divides them"
        )
    return count // size * rank, count // size * (rank + 1)


def _delta_net_cuts(hybrid: HybridConfig, keys: Span) -> dict[str, _Cut]:
    """What the key heads `keys` need of each parameter: of channels queries, keys and values."""
    sizes = hybrid.delta_net
    values = _times(keys, sizes.num_value_heads // sizes.num_key_heads)
    queries, wide = _times(keys, sizes.key_head_dim), _times(values, sizes.value_head_dim)
    starts = (0, sizes.key_dim, 2 * sizes.key_dim)
    parts = zip(starts, (queries, queries, wide), strict=True)
    channels = _Cut([(start + first, start + end) for start, (first, end) in parts])
    cuts = {"in_proj_qkv": channels, "conv1d": channels, "in_proj_z": _Cut([wide])}
    cuts |= {name: _Cut([values]) for name in ("in_proj_a", "in_proj_b", "A_log", "dt_bias")}
    return cuts | {"out_proj": _Cut([wide], is_inner=True)}


def _narrower(hybrid: HybridConfig, num_key_heads: int) -> HybridConfig:
    shared = hybrid.delta_net.num_value_heads // hybrid.delta_net.num_key_heads
    sizes = replace(hybrid.delta_net, num_key_heads=num_key_heads, num_value_heads=num_key_heads * shared)
    return replace(hybrid, delta_net=sizes)


def _width(span: Span) -> int:
    return span[1] - span[0]


def _times(span: Span, factor: int) -> Span:
    return span[0] * factor, span[1] * factor


def _arrays(w: Weight) -> tuple[mx.array, ...]:
    if not isinstance(w, QuantizedWeights):
        return (w,)
    return (w.weight, w.scales) if w.biases is None else (w.weight, w.scales, w.biases)
