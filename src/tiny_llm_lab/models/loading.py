"""A model's name -> a checkpoint in memory."""

from pathlib import Path
from typing import cast

import mlx.core as mx

from tiny_llm_lab.models.config import read_config, read_json
from tiny_llm_lab.models.registry import find_folder
from tiny_llm_lab.models.weights import read_weights
from tiny_llm_lab.types import Checkpoint, Tokenizer, UserError

DTYPES = {"float32": mx.float32, "bfloat16": mx.bfloat16, "float16": mx.float16}


def load_checkpoint(
    name: str = "default", device: str | None = None, dtype: str | mx.Dtype | None = None
) -> Checkpoint:
    """Load the checkpoint called `name`.

    `name` is "default" (shipped), a short name such as "qwen3-0.6b", a hub id, a local folder in Hugging
    Face or MLX layout, or "random:NAME". `device` "cpu" or "gpu" becomes MLX's default device; None keeps
    it. `dtype` None means as stored on a GPU and float32 on the CPU, where MLX is several times slower in
    16 bits and, for quantized weights, less exact. Raises UserError, one line, for whatever is wrong.
    """
    _choose_device(device)
    folder = find_folder(name)
    config, quantization = read_config(folder / "config.json")
    weights = read_weights(folder, config, quantization, _chosen_dtype(dtype))
    norm = weights["model.norm.weight"]
    assert isinstance(norm, mx.array)
    return Checkpoint(name, folder, config, weights, _read_tokenizer(folder), norm.dtype)


def _choose_device(device: str | None) -> None:
    if device is None:
        return
    if device not in ("cpu", "gpu"):
        raise UserError(f"unknown device {device!r}: choose cpu or gpu")
    if device == "gpu" and not mx.is_available(mx.gpu):
        raise UserError("this MLX has no GPU: use --device cpu, or install a Metal or CUDA build of MLX")
    mx.set_default_device(mx.gpu if device == "gpu" else mx.cpu)


def _chosen_dtype(dtype: str | mx.Dtype | None) -> mx.Dtype | None:
    if dtype is None:
        return mx.float32 if mx.default_device() == mx.cpu else None
    if isinstance(dtype, mx.Dtype):
        return dtype
    if dtype not in DTYPES:
        raise UserError(f"unknown dtype {dtype!r}: choose one of {', '.join(DTYPES)}")
    return DTYPES[dtype]


def _read_tokenizer(folder: Path) -> Tokenizer:
    if not any((folder / name).exists() for name in ("tokenizer.json", "tokenizer.model", "vocab.json")):
        raise UserError(f"{folder} holds no tokenizer.json: copy the tokenizer files of the model there")
    # Here, because importing the tokenizers' library takes seconds.
    from mlx_lm import tokenizer_utils

    try:
        return cast(Tokenizer, tokenizer_utils.load(folder, eos_token_ids=_eos_token_ids(folder)))
    except Exception as error:  # the library raises whatever its parsers raise
        reason = str(error).strip().splitlines()[0][:80] if str(error).strip() else type(error).__name__
        raise UserError(f"{folder}: the tokenizer cannot be read ({reason}): copy its files again") from None


def _eos_token_ids(folder: Path) -> list[int] | None:
    """Every end token that the checkpoint declares anywhere; None leaves it to the tokenizer."""
    found: set[int] = set()
    for name in ("generation_config.json", "config.json"):
        if (folder / name).exists():
            declared = read_json(folder / name).get("eos_token_id")
            several = declared if isinstance(declared, list) else [declared]
            found |= {int(token) for token in several if token is not None}
    return sorted(found) or None
