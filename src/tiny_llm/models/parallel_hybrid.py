"""Tensor parallelism of a hybrid: each rank has some key heads of every delta net, with their value heads."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import mlx.core as mx

from tiny_llm_lab.runtime.native import delta_kernel, kernels, laid_out
from tiny_llm_lab.types import Checkpoint, HybridConfig, QuantizedWeights, UserError, Weight

from ..layers.array_delta import ArrayDelta
from .hybrid import HybridModel
from .ops_hybrid import OpsHybridModel
from .parallel import Span, shard_columns, shard_heads, shard_inner
from .qwen import QwenModel


def build_parallel_hybrid(checkpoint: Checkpoint, group: mx.distributed.Group) -> QwenModel:
    """This rank's model of a hybrid's `checkpoint`, as `build_parallel_model`."""
    part = shard_hybrid(checkpoint, group.rank(), group.size())
    all_sum = None if group.size() == 1 else partial(_all_sum, group)
    ops, kernel = kernels(__package__, part.weights), delta_kernel(__package__, ArrayDelta())
    if ops is None:
        return HybridModel(part.config, part.weights, all_sum)
    return OpsHybridModel(part.config, laid_out(ops, dict(part.weights)), ops, all_sum, kernel)


def shard_hybrid(checkpoint: Checkpoint, rank: int, size: int) -> Checkpoint:
    """As `shard_checkpoint`: what `rank` of `size` ranks needs of a hybrid, a checkpoint of a narrower one.

    Queries go with their gates, key heads with their value heads, and channels of the convolution with
    these. Norms, router and the gate of the shared expert are whole on every rank. Raises UserError if the
    model can't be split this way.
    """
    config, hybrid = checkpoint.config, checkpoint.config.hybrid
    assert hybrid is not None
    if size == 1:
        return checkpoint
    heads, kv_heads = shard_heads(config, rank, size)
    keys = _key_heads(hybrid, rank, size)
    inner = {
        module: _inner(checkpoint, f".{module}.down_proj.weight", width, rank, size)
        for module, width in (
            ("mlp", config.intermediate_size),
            ("switch_mlp", config.moe_intermediate_size),
            ("shared_expert", hybrid.shared_expert_intermediate_size),
        )
    }
    shared = hybrid.delta_net.num_value_heads // hybrid.delta_net.num_key_heads
    sizes = replace(
        hybrid.delta_net, num_key_heads=keys[1] - keys[0], num_value_heads=(keys[1] - keys[0]) * shared
    )
    narrower = replace(
        config,
        num_attention_heads=heads[1] - heads[0],
        num_key_value_heads=kv_heads[1] - kv_heads[0],
        intermediate_size=_width(inner["mlp"]),
        moe_intermediate_size=_width(inner["switch_mlp"]),
        hybrid=replace(
            hybrid, delta_net=sizes, shared_expert_intermediate_size=_width(inner["shared_expert"])
        ),
    )
    dim = config.head_dim
    rows = _delta_net_rows(hybrid, keys) | {"q_proj": [_times(heads, 2 * dim)]}
    rows |= {name: [_times(kv_heads, dim)] for name in ("k_proj", "v_proj")}
    columns = {"o_proj": _times(heads, dim), "out_proj": rows["in_proj_z"][0]}
    parts = {name: _part(name, w, rows, columns, inner) for name, w in checkpoint.weights.items()}
    mx.eval([w if isinstance(w, mx.array) else (w.weight, w.scales) for w in parts.values()])
    return replace(checkpoint, config=narrower, weights=parts)


def _all_sum(group: mx.distributed.Group, x: mx.array) -> mx.array:
    return mx.distributed.all_sum(x, group=group) if x.size else x


def _key_heads(hybrid: HybridConfig, rank: int, size: int) -> Span:
    count = hybrid.delta_net.num_key_heads
    if count % size:
        raise UserError(
            f"{count} key heads of a delta net cannot be split over {size} ranks: "
            "choose a size that divides them"
        )
    return count // size * rank, count // size * (rank + 1)


def _delta_net_rows(hybrid: HybridConfig, keys: Span) -> dict[str, list[Span]]:
    """The rows of each parameter that the key heads `keys` need: of channels queries, keys and values."""
    sizes = hybrid.delta_net
    values = _times(keys, sizes.num_value_heads // sizes.num_key_heads)
    queries, wide = _times(keys, sizes.key_head_dim), _times(values, sizes.value_head_dim)
    starts = (0, sizes.key_dim, 2 * sizes.key_dim)
    parts = zip(starts, (queries, queries, wide), strict=True)
    channels = [(start + first, start + end) for start, (first, end) in parts]
    rows = dict.fromkeys(("in_proj_qkv", "conv1d"), channels) | {"in_proj_z": [wide]}
    return rows | {name: [values] for name in ("in_proj_a", "in_proj_b", "A_log", "dt_bias")}


def _part(
    name: str,
    w: Weight,
    rows: dict[str, list[Span]],
    columns: dict[str, Span],
    inner: dict[str, Span],
) -> Weight:
    module, _, last = name.removesuffix(".weight").rpartition(".")
    module = module.rpartition(".")[2]
    if last in ("gate_proj", "up_proj"):
        return _rows(w, [inner[module]])
    if last == "down_proj":
        return shard_columns(w, *inner[module])
    if last in columns:
        span = columns[last]
        if isinstance(w, QuantizedWeights) and _width(span) % w.group_size:
            raise UserError(f"the ranks would cut groups of {name}: use fewer ranks, or smaller groups")
        return shard_columns(w, *span)
    return _rows(w, rows[last]) if last in rows else w


def _rows(w: Weight, spans: Sequence[Span]) -> Weight:
    """A copy of some outputs of w [..., O, I], or of some numbers of a vector."""
    wanted = mx.concatenate([mx.arange(*span) for span in spans])
    if isinstance(w, QuantizedWeights):
        return w.mapped(lambda part: mx.take(part, wanted, axis=-2))
    return mx.take(w, wanted, axis=max(0, w.ndim - 2))


def _inner(checkpoint: Checkpoint, ending: str, width: int, rank: int, size: int) -> Span:
    downs = [w for name, w in checkpoint.weights.items() if name.endswith(ending)]
    groups = [w.group_size if isinstance(w, QuantizedWeights) else 1 for w in downs]
    return shard_inner(width, max(groups), rank, size) if downs else (0, width)


def _times(span: Span, factor: int) -> Span:
    return span[0] * factor, span[1] * factor


def _width(span: Span) -> int:
    return span[1] - span[0]
