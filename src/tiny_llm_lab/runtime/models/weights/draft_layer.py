"""A draft layer that is shipped alone, in a folder of its own: embedding and head are its model's."""

from pathlib import Path
from typing import Final

import mlx.core as mx

from tiny_llm_lab.runtime.models.config.fields import read_json
from tiny_llm_lab.runtime.models.config.model_config import DRAFT_TYPES, read_config
from tiny_llm_lab.runtime.models.weights.layout import DRAFTS, evaluated, text_name
from tiny_llm_lab.runtime.models.weights.quantization import read_quantization
from tiny_llm_lab.runtime.models.weights.read_weights import Files, load_drafts
from tiny_llm_lab.runtime.models.weights.safetensors_file import find_tensors
from tiny_llm_lab.runtime.native.cpp_ops import can_read_model
from tiny_llm_lab.types import ModelConfig, QuantizedWeights, UserError, Weight

# What the layer's numbers depend on; the rest shows in the shapes of its tensors.
_SAME: Final = (
    *("hidden_size", "vocab_size", "num_attention_heads", "num_key_value_heads", "head_dim", "rotary_dims"),
    *("rope_theta", "rms_norm_eps", "num_experts", "num_experts_per_tok", "norm_topk_prob"),
)


def require_draft_layer(folder: Path, config: ModelConfig) -> None:
    """Raise UserError unless the config.json in `folder` is that of a draft layer of a model of `config`."""
    path = folder / "config.json"
    content = read_json(path)
    if config.hybrid is None:
        message = f"it drafts for a hybrid such as Qwen3.5, and this model is of type {config.model_type}"
        raise UserError(f"{folder}: {message}: leave out --speculate, or choose draft:MODEL")
    if (kind := content.get("model_type")) not in DRAFT_TYPES:
        message = f"model_type {kind!r} is not a draft layer alone, as {DRAFT_TYPES[0]} is"
        raise UserError(f"{path}: {message}: name a folder that has one, or choose --speculate draft:MODEL")
    inner = content.inner("text_config")
    stated = {**(inner or content), "model_type": inner.get("model_type", config.model_type)}
    own, _ = read_config(path, stated)
    for name in _SAME:
        theirs, ours = getattr(own, name), getattr(config, name)
        if theirs != ours:
            message = f"the layer belongs to a model with {name} {theirs}, and this one has {ours}"
            raise UserError(f"{path}: {message}: choose the draft layer of this very model")


def load_draft_layer(folder: Path, config: ModelConfig, dtype: mx.Dtype) -> dict[str, Weight]:
    """The weights of the draft layer in `folder`, in `dtype`, named as those in a checkpoint of `config`.

    Raises UserError as `load_weights`. MLX's conversions leave "mtp." out of the names, and have the 1 of
    norms added. A layer in a packing that the C++ kernels don't read is unpacked on a CPU.
    """
    found = find_tensors(folder)
    names = [text_name(name) for name, info in found.items() if info.format != "mlx"]
    is_original = len(names) == len(found) and all(name.startswith(DRAFTS) for name in names)
    packed = read_quantization(read_json(folder / "config.json"))
    tensors = {_draft_name(name): info for name, info in found.items()}
    files = Files(folder, tensors, config, packed and packed.renamed(_draft_name))
    weights = load_drafts(files, is_original, dtype)
    if mx.default_device() != mx.cpu or can_read_model(weights):
        return weights
    # Else a model's operators would be others with the layer, and with them the last bits of its answers.
    return {
        name: evaluated(w.dequantized()) if isinstance(w, QuantizedWeights) else w
        for name, w in weights.items()
    }


def _draft_name(name: str) -> str:
    return DRAFTS + text_name(name).removeprefix(DRAFTS)
