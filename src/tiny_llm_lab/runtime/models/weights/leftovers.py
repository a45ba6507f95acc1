"""Tensors that the model does not ask for: a few are harmless, the others would change it."""

from collections.abc import Mapping, Set

from tiny_llm_lab.runtime.models.weights.parameters import EMBEDDING
from tiny_llm_lab.runtime.models.weights.safetensors_file import TensorInfo, hold_the_same
from tiny_llm_lab.types import ModelConfig, UserError

# Older versions of transformers saved what follows from the configuration anyway.
_ROTARY_TABLE = "rotary_emb.inv_freq"
_HEAD = "lm_head."
_BELONGING = "use the config.json that belongs to these weights"


def refuse_leftovers(tensors: Mapping[str, TensorInfo], used: Set[str], config: ModelConfig) -> None:
    """Raise UserError for a tensor that is not `used`: the model without it is not the one that was trained.

    Rotary tables may be there, and in a checkpoint with a tied head one that equals the embedding.
    """
    for name in sorted(tensors.keys() - used):
        if name.endswith(_ROTARY_TABLE):
            continue
        info = tensors[name]
        if config.tie_word_embeddings and name.startswith(_HEAD):
            shared = tensors.get(f"{EMBEDDING}.{name.removeprefix(_HEAD)}")
            if shared is None or not hold_the_same(info, shared):
                raise UserError(
                    f"{info.path}: {name} differs from {EMBEDDING} in dtype, shape or numbers, "
                    "but config.json has tie_word_embeddings true: set it to false to use that output head"
                )
            continue
        is_adapter = "lora" in name.lower()
        cure = "fuse the adapter into the weights first" if is_adapter else _BELONGING
        raise UserError(
            f"{info.path}: tensor {name} is not in the {config.model_type} model of config.json: {cure}"
        )
