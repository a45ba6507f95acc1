"""The parameters of a model, and how checkpoints write them down: Hugging Face's ways, MLX's, a hybrid's.

Names are as Hugging Face spells them, but see EXPERTS.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal, cast

import mlx.core as mx

from tiny_llm_lab.runtime.console.talk import log
from tiny_llm_lab.runtime.models.weights.safetensors_file import TensorInfo
from tiny_llm_lab.runtime.models.weights.tower_layout import PATCHES, TOWER, patch_shape, tower_shapes
from tiny_llm_lab.types import DeltaNetSizes, ModelConfig, QuantizedWeights, UserError, Weight

EMBEDDING = "model.embed_tokens"
NORM = "model.norm.weight"
# mlx-lm's name for the matrices of all experts, one above the other; Hugging Face numbers them.
EXPERTS = "mlp.switch_mlp"
SHARED_EXPERT = "mlp.shared_expert"
DELTA_NET = "linear_attn"
DRAFTS = "mtp."

ParameterShape = tuple[int, ...]


def parameter_shapes(config: ModelConfig) -> Iterator[tuple[str, ParameterShape]]:
    """Name and logical shape (before any packing) of every parameter, in the model's order."""
    yield f"{EMBEDDING}.weight", (config.vocab_size, config.hidden_size)
    for layer in range(config.num_hidden_layers):
        for name, shape in (
            *_mixer_shapes(config, layer),
            *_feed_forward_shapes(config, config.has_experts(layer)),
        ):
            yield f"model.layers.{layer}.{name}", shape
    yield NORM, (config.hidden_size,)
    if not config.tie_word_embeddings:
        yield "lm_head.weight", (config.vocab_size, config.hidden_size)
    if config.pictures is not None:
        for name, shape in tower_shapes(config.pictures, config.hidden_size):
            yield f"{TOWER}{name}", shape


def draft_shapes(config: ModelConfig) -> Iterator[tuple[str, ParameterShape]]:
    """Those of the layer (mtp) that drafts for a hybrid, which shares embedding and head with it."""
    hidden = config.hidden_size
    yield f"{DRAFTS}fc.weight", (hidden, 2 * hidden)
    for name in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"):
        yield f"{DRAFTS}{name}.weight", (hidden,)
    for name, shape in (*_attention_shapes(config), *_feed_forward_shapes(config, config.num_experts > 0)):
        yield f"{DRAFTS}layers.0.{name}", shape


def _mixer_shapes(config: ModelConfig, layer: int) -> Iterator[tuple[str, ParameterShape]]:
    hybrid = config.hybrid
    if hybrid is None or hybrid.mixers[layer] == "full_attention":
        return _attention_shapes(config)
    return _delta_net_shapes(hybrid.delta_net, config.hidden_size)


def _attention_shapes(config: ModelConfig) -> Iterator[tuple[str, ParameterShape]]:
    hidden = config.hidden_size
    queries = config.num_attention_heads * config.head_dim
    keys = config.num_key_value_heads * config.head_dim
    gates = queries if config.hybrid else 0  # of gated attention, next to each head's queries
    for name, rows in (("q_proj", queries + gates), ("k_proj", keys), ("v_proj", keys)):
        yield f"self_attn.{name}.weight", (rows, hidden)
        if config.qkv_bias:
            yield f"self_attn.{name}.bias", (rows,)
    yield "self_attn.o_proj.weight", (hidden, queries)
    if config.qk_norm:
        yield "self_attn.q_norm.weight", (config.head_dim,)
        yield "self_attn.k_norm.weight", (config.head_dim,)


def _delta_net_shapes(sizes: DeltaNetSizes, hidden: int) -> Iterator[tuple[str, ParameterShape]]:
    rows = {"qkv": sizes.conv_dim, "z": sizes.value_dim, "b": sizes.num_value_heads}
    for name, outputs in (*rows.items(), ("a", sizes.num_value_heads)):
        yield f"{DELTA_NET}.in_proj_{name}.weight", (outputs, hidden)
    yield f"{DELTA_NET}.conv1d.weight", (sizes.conv_dim, sizes.conv_kernel)
    yield f"{DELTA_NET}.dt_bias", (sizes.num_value_heads,)
    yield f"{DELTA_NET}.A_log", (sizes.num_value_heads,)
    yield f"{DELTA_NET}.norm.weight", (sizes.value_head_dim,)
    yield f"{DELTA_NET}.out_proj.weight", (hidden, sizes.value_dim)


def _feed_forward_shapes(config: ModelConfig, has_experts: bool) -> Iterator[tuple[str, ParameterShape]]:
    hidden, inner, module = config.hidden_size, config.intermediate_size, "mlp"
    stack: ParameterShape = ()
    if has_experts:
        yield "mlp.gate.weight", (config.num_experts, hidden)
        inner, module, stack = config.moe_intermediate_size, EXPERTS, (config.num_experts,)
    yield f"{module}.gate_proj.weight", (*stack, inner, hidden)
    yield f"{module}.up_proj.weight", (*stack, inner, hidden)
    yield f"{module}.down_proj.weight", (*stack, hidden, inner)
    if has_experts and (shared := config.shared_expert_intermediate_size):
        yield f"{SHARED_EXPERT}.gate_proj.weight", (shared, hidden)
        yield f"{SHARED_EXPERT}.up_proj.weight", (shared, hidden)
        yield f"{SHARED_EXPERT}.down_proj.weight", (hidden, shared)
        yield f"{SHARED_EXPERT}_gate.weight", (1, hidden)
    yield "input_layernorm.weight", (hidden,)
    yield "post_attention_layernorm.weight", (hidden,)


# Names without ".weight": the matrices of all experts, those of gate above those of up.
FUSED_GATE_UP: Final = "mlp.experts.gate_up_proj"
FUSED_DOWN: Final = "mlp.experts.down_proj"


def numbered(name: str, count: int) -> list[str]:
    """Hugging Face's names of what mlx-lm stacks under `name`, one for each of `count` experts."""
    return [name.replace(EXPERTS, f"mlp.experts.{expert}") for expert in range(count)]


def stack_experts(weights: dict[str, Weight], parameters: Iterable[tuple[str, ParameterShape]]) -> None:
    """Replace the numbered matrices in `weights` by their stacks, [N, O, I]; others stay as they are.

    Raises UserError when the experts of one layer are packed in different ways.
    """
    for name, shape in parameters:
        if f".{EXPERTS}." in name and name not in weights:
            # Popped, so that no more than one parameter of one layer exists twice.
            weights[name] = _stacked(name, [weights.pop(single) for single in numbered(name, shape[0])])


def split_experts(weights: dict[str, Weight], are_turned: bool) -> None:
    """Replace the fused matrices in `weights`, gate above up [N, 2 I, E], by one stack of each.

    `are_turned`: they are [N, E, 2 I].
    """
    for name in [name for name in weights if name.endswith(FUSED_GATE_UP)]:
        layer = name.removesuffix(FUSED_GATE_UP) + EXPERTS
        down, fused = (cast(mx.array, weights.pop(each)) for each in (_down_of(name), name))
        if are_turned:
            down, fused = of_its_own(down.swapaxes(1, 2)), fused.swapaxes(1, 2)
        gate, up = mx.split(fused, 2, axis=1)
        for part, half in (("gate", gate), ("up", up)):
            weights[f"{layer}.{part}_proj.weight"] = of_its_own(half)
        weights[f"{layer}.down_proj.weight"] = down


def _down_of(name: str) -> str:
    return name.removesuffix(FUSED_GATE_UP) + FUSED_DOWN


def _stacked(name: str, parts: list[Weight]) -> Weight:
    packed = [part for part in parts if isinstance(part, QuantizedWeights)]
    dense = [part for part in parts if isinstance(part, mx.array)]
    if dense and not packed:
        return _of(dense)
    packings = {(part.bits, part.group_size, part.mode) for part in packed}
    if dense or len(packings) > 1:
        raise UserError(f"{name}: its experts are packed in different ways: choose another checkpoint")
    biases = [part.biases for part in packed if part.biases is not None]
    return replace(
        packed[0],
        weight=_of([part.weight for part in packed]),
        scales=_of([part.scales for part in packed]),
        biases=_of(biases) if biases else None,
    )


def _of(arrays: list[mx.array]) -> mx.array:
    return evaluated(mx.stack(arrays))


def of_its_own(part: mx.array) -> mx.array:
    """A part of an array as a copy: a view would keep the whole in memory."""
    return evaluated(mx.contiguous(part))


def evaluated(array: mx.array) -> mx.array:
    """The array, computed now."""
    mx.eval(array)
    return array


# Of Qwen3-Next: what belongs to a key head is one behind the other.
FUSED_QKVZ: Final = f"{DELTA_NET}.in_proj_qkvz.weight"
FUSED_BA: Final = f"{DELTA_NET}.in_proj_ba.weight"
CONV: Final = f"{DELTA_NET}.conv1d.weight"
_NUMBERED = re.compile(r"\.mlp\.experts\.\d+\.")


@dataclass(frozen=True)
class Layout:
    """Where the parameters of a checkpoint are, as the names and shapes of its tensors say."""

    experts: Literal["stacked", "numbered", "fused"] = "stacked"
    has_turned_experts: bool = False  # fused ones [N, E, 2 I] and [N, I, E], as Qwen publishes Qwen3-VL
    has_fused_inputs: bool = False  # of gated delta nets
    has_colours_last: bool = False  # of a patch
    # A hybrid's: conv1d is [C, 1, K], and norms multiply by 1 + weight. None if nothing says which.
    is_original: bool | None = False

    @classmethod
    def of(cls, tensors: Mapping[str, TensorInfo]) -> "Layout":
        """That of a checkpoint with these tensors."""
        convs = [info.shape for name, info in tensors.items() if name.endswith(CONV)]
        is_fused = any(name.endswith(FUSED_GATE_UP) for name in tensors)
        return cls(
            experts="fused" if is_fused else "numbered" if any(map(_NUMBERED.search, tensors)) else "stacked",
            has_turned_experts=_are_turned(tensors),
            has_fused_inputs=any(name.endswith(FUSED_QKVZ) for name in tensors),
            has_colours_last=PATCHES in tensors and tensors[PATCHES].shape[-1:] == (3,),
            # Its shape decides: other tensors, such as those of mtp, come with either kind of norms.
            is_original=any(shape[-1] != 1 for shape in convs) if convs else _as_its_writer(tensors),
        )


def _are_turned(tensors: Mapping[str, TensorInfo]) -> bool:
    """Whether fused experts have their inputs before their outputs."""
    name = next((name for name in tensors if name.endswith(FUSED_GATE_UP)), FUSED_GATE_UP)
    both = (tensors.get(each) for each in (name, _down_of(name)))
    shapes = [info.shape for info in both if info is not None and len(info.shape) == 3]
    return len(shapes) == 2 and shapes[0][1:] == (shapes[1][2], 2 * shapes[1][1])


def _as_its_writer(tensors: Mapping[str, TensorInfo]) -> bool | None:
    """As files without conv1d say: transformers and mlx-lm name themselves in theirs."""
    formats = {info.format for info in tensors.values()}
    return True if formats == {"pt"} else False if formats == {"mlx"} else None


def stored_shapes(
    parameters: Iterable[tuple[str, ParameterShape]], config: ModelConfig, layout: Layout
) -> Iterator[tuple[str, ParameterShape]]:
    """Name and logical shape of some parameters of a model as they are in the files."""
    for name, shape in parameters:
        layer, _, _ = name.partition(f"{EXPERTS}.")
        if layer != name:
            yield from _experts(layer, name, shape, layout)
        elif layout.has_fused_inputs and f".{DELTA_NET}.in_proj_" in name:
            yield from _fused_inputs(name, shape, config)
        elif name == PATCHES and config.pictures is not None:
            yield name, patch_shape(config.pictures, layout.has_colours_last)
        elif name.endswith(CONV):
            channels, taps = shape
            yield name, (channels, 1, taps) if layout.is_original else (channels, taps, 1)
        else:
            yield name, shape


def _experts(
    layer: str, name: str, shape: ParameterShape, layout: Layout
) -> Iterator[tuple[str, ParameterShape]]:
    count, rows, columns = shape
    if layout.experts == "numbered":
        yield from ((single, (rows, columns)) for single in numbered(name, count))
    elif layout.experts == "stacked":
        yield name, shape
    elif name.endswith("gate_proj.weight"):
        yield f"{layer}{FUSED_GATE_UP}", _turned((count, 2 * rows, columns), layout)
    elif name.endswith("down_proj.weight"):
        yield f"{layer}{FUSED_DOWN}", _turned(shape, layout)


def _turned(shape: ParameterShape, layout: Layout) -> ParameterShape:
    count, rows, columns = shape
    return (count, columns, rows) if layout.has_turned_experts else shape


def _fused_inputs(
    name: str, shape: ParameterShape, config: ModelConfig
) -> Iterator[tuple[str, ParameterShape]]:
    assert config.hybrid is not None
    sizes, (rows, hidden) = config.hybrid.delta_net, shape
    layer, _, part = name.partition(f"{DELTA_NET}.in_proj_")
    if part == "qkv.weight":
        yield f"{layer}{FUSED_QKVZ}", (rows + sizes.value_dim, hidden)
    elif part == "b.weight":
        yield f"{layer}{FUSED_BA}", (2 * rows, hidden)


# Gates of a delta net, one number a head: float32 in any model, because they are exponents.
FLOAT32: Final = (f"{DELTA_NET}.A_log", f"{DELTA_NET}.dt_bias")
NORMS: Final = ("norm.weight", "norm_embedding.weight", "norm_hidden.weight")
_VISION: Final = ("model.visual.", TOWER, "vision_tower.", "model.vision_tower.")
# What stands in front of the text model's names: as transformers saves both models, and as MLX does.
_PREFIXES: Final = (
    *((before, TOWER) for before in _VISION),
    ("model.language_model.", "model."),
    ("language_model.model.", "model."),
    ("language_model.", ""),
)


def has_pictures(names: Iterable[str]) -> bool:
    """Whether a checkpoint has the tensors of a vision tower, or names those of text as one that has."""
    return any(name.startswith(tuple(before for before, _ in _PREFIXES)) for name in names)


def text_name(name: str) -> str:
    """The name of a tensor or module as we have it: model.layers.0, lm_head, mtp, visual.blocks.0."""
    for before, after in _PREFIXES:
        if name.startswith(before):
            return after + name.removeprefix(before)
    return name


def text_tensors(
    tensors: Mapping[str, TensorInfo], folder: Path, config: ModelConfig
) -> dict[str, TensorInfo]:
    """The tensors of the model, its tower and its draft layer by `text_name`; one line on stderr says what
    else there is, parts of a draft layer among it, and a tower that `config` does not have.

    Raises UserError for two tensors of one name.
    """
    results: dict[str, TensorInfo] = {}
    num_pictures = 0
    for stored, info in tensors.items():
        name = text_name(stored)
        if stored.startswith(_VISION) and config.pictures is None:
            num_pictures += 1
        elif name in results:
            raise UserError(
                f"{folder}: tensors {results[name].name} and {stored} are the same parameter: "
                "remove the file that is not the model's"
            )
        else:
            results[name] = info
    parts = [name for name in results if name.startswith(DRAFTS)]
    if _is_draft_layer({name: results[name] for name in parts}, config):
        parts = []
    for name in parts:
        del results[name]
    left_out = {
        "a vision tower, as only text is served": num_pictures,
        "a draft layer (mtp) that is not whole, or not alone": len(parts),
    }
    if message := [f"{count} tensors of {what}" for what, count in left_out.items() if count]:
        log(f"{folder}: left out: {'; '.join(message)}")
    return results


def _is_draft_layer(tensors: Mapping[str, TensorInfo], config: ModelConfig) -> bool:
    """Whether these are all tensors of one draft layer, packed or not, and no others."""
    wanted = {name for name, _ in stored_shapes(draft_shapes(config), config, Layout.of(tensors))}
    modules = {name.removesuffix(".weight") for name in wanted}
    known = {name for name in tensors if name in wanted or name.rpartition(".")[0] in modules}
    return wanted <= known == tensors.keys()


def unify(weights: dict[str, Weight], config: ModelConfig, layout: Layout) -> None:
    """Bring the weights of a hybrid, in place, into the layout that `parameter_shapes` has."""
    assert config.hybrid is not None
    sizes = config.hybrid.delta_net
    for name in list(weights):
        if name.endswith((FUSED_QKVZ, FUSED_BA)):
            module, whole = name.rpartition("_")[0], weights.pop(name)
            parts = _rows_of_qkvz(sizes) if name.endswith(FUSED_QKVZ) else _rows_of_ba(sizes)
            for part, rows in parts.items():
                weights[f"{module}_{part}.weight"] = _rows(whole, rows)
        elif name.endswith(CONV):
            weights[name] = cast(mx.array, weights[name]).reshape(sizes.conv_dim, sizes.conv_kernel)
        elif layout.is_original and _adds_one(name):
            weight = cast(mx.array, weights[name])
            weights[name] = evaluated((weight.astype(mx.float32) + 1).astype(weight.dtype))


def _adds_one(name: str) -> bool:
    """Whether a norm multiplies by 1 + weight as it was trained; of a delta net or a tower none does."""
    is_own = name.endswith(f"{DELTA_NET}.norm.weight") or name.startswith(TOWER)
    return name.endswith(NORMS) and not is_own


def _rows_of_qkvz(sizes: DeltaNetSizes) -> dict[str, mx.array]:
    """Where in in_proj_qkvz the rows of in_proj_qkv and in_proj_z are: q, k, v and z of each key head."""
    per_head = sizes.value_dim // sizes.num_key_heads
    widths = (sizes.key_head_dim, sizes.key_head_dim, per_head, per_head)
    q, k, v, z = _interleaved(sizes.num_key_heads, widths)
    return {"qkv": mx.concatenate([q, k, v]), "z": z}


def _rows_of_ba(sizes: DeltaNetSizes) -> dict[str, mx.array]:
    per_head = sizes.num_value_heads // sizes.num_key_heads
    b, a = _interleaved(sizes.num_key_heads, (per_head, per_head))
    return {"b": b, "a": a}


def _interleaved(num_heads: int, widths: tuple[int, ...]) -> list[mx.array]:
    """The rows of each part, where every head has so many rows of each, one part behind the other."""
    starts = mx.arange(num_heads)[:, None] * sum(widths)
    return [
        (starts + sum(widths[:i]) + mx.arange(width)).reshape(-1).astype(mx.uint32)
        for i, width in enumerate(widths)
    ]


def _rows(w: Weight, rows: mx.array) -> Weight:
    if isinstance(w, QuantizedWeights):
        return w.mapped(lambda part: of_its_own(part[rows]))
    return of_its_own(w[rows])
