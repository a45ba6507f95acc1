"""From a name to a loaded checkpoint."""

import os
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal

import mlx.core as mx

from tiny_llm_lab.runtime import native
from tiny_llm_lab.runtime.memory import require_fit, set_limits
from tiny_llm_lab.runtime.models.config.fields import read_json
from tiny_llm_lab.runtime.models.config.model_config import read_config
from tiny_llm_lab.runtime.models.random.config_json import config_json
from tiny_llm_lab.runtime.models.random.shapes import parse_shape
from tiny_llm_lab.runtime.models.registry import RANDOM_PREFIX, find_folder
from tiny_llm_lab.runtime.models.text.tokenizer import RenderedChat, load_tokenizer
from tiny_llm_lab.runtime.models.weights.draft_layer import load_draft_layer, require_draft_layer
from tiny_llm_lab.runtime.models.weights.read_weights import load_weights
from tiny_llm_lab.runtime.models.weights.safetensors_file import weight_files
from tiny_llm_lab.runtime.models.weights.tower_layout import PATCHES
from tiny_llm_lab.types import Checkpoint, ModelConfig, QuantizedWeights, Task, UserError


@dataclass(frozen=True)
class BufferLimits:
    """MLX ends a command buffer above so many operators, or when these read more than so many Mi elements."""

    ops: int
    mi_elements: int


# With MLX's own 40 Mi elements each touch of a pool of keys ends a buffer: up to 180 a step, and MLX waits
# when 10 are in flight. Without a limit a step has fewer than 10, so the next step finds the pools in use and
# copies them. With these a step has 14 to 40 (`python -m benchmarks.measurements.command_buffers`).
LIMITS: Final = BufferLimits(ops=40, mi_elements=200)


def set_buffer_limits() -> None:
    """Give MLX our limits on Metal, unless its own variables are set.

    To be called before MLX first uses the GPU: it reads them then.
    """
    if mx.metal.is_available():
        os.environ.setdefault("MLX_MAX_OPS_PER_BUFFER", str(LIMITS.ops))
        os.environ.setdefault("MLX_MAX_MB_PER_BUFFER", str(LIMITS.mi_elements))


ANSWERS = ("no", "yes")  # whose logits a model of task "score" gives
_CONFIG = "config.json"
_POOLING = "1_Pooling/config.json"
_LOGIT_SCORE = "1_LogitScore/config.json"


def task_of(folder: Path, asked: Task | Literal["auto"]) -> Task:
    """`asked`, or what a checkpoint of sentence-transformers is for, to embed or to score; others generate.

    Raises UserError for an embedding model that does not take the last token, or computes more after it.
    """
    if not (folder / "modules.json").is_file():
        return "generate" if asked == "auto" else asked
    is_reranker = (folder / _LOGIT_SCORE).is_file()
    task: Task = ("score" if is_reranker else "embed") if asked == "auto" else asked
    if task == "embed":
        pooling = read_json(folder / _POOLING)
        if not (pooling.get("pooling_mode_lasttoken") or pooling.get("pooling_mode") == "lasttoken"):
            raise UserError(f"{folder / _POOLING}: not pooling_mode_lasttoken: choose another model")
        modules = [each.name for each in folder.iterdir() if re.match(r"\d+_", each.name)]
        if more := sorted(name for name in modules if not name.endswith(("_Pooling", "_Normalize"))):
            raise UserError(f"{folder}: the module {more[0]} is not supported: choose another model")
    return task


def with_head(checkpoint: Checkpoint, task: Task) -> Checkpoint:
    """The checkpoint with an output head for `task`; of "generate" it is its own.

    For "embed" the head is the identity [E, E], so that a row of "logits" is the hidden state, without
    rounding. For "score" it has the rows of ANSWERS, [2, E]. Raises UserError if the model answers otherwise.
    """
    config, weights = checkpoint.config, checkpoint.weights
    if task == "generate":
        return checkpoint
    if task == "embed":
        head = mx.eye(config.hidden_size, dtype=checkpoint.dtype)
    else:
        whole = weights["model.embed_tokens.weight" if config.tie_word_embeddings else "lm_head.weight"]
        rows = mx.array(_answer_ids(checkpoint))
        if isinstance(whole, QuantizedWeights):
            head = whole.mapped(lambda part: part[rows]).dequantized().astype(checkpoint.dtype)
        else:
            head = whole[rows]
    mx.eval(head)
    changed = replace(config, tie_word_embeddings=False, task=task)
    return replace(checkpoint, config=changed, weights={**weights, "lm_head.weight": head})


def _answer_ids(checkpoint: Checkpoint) -> list[int]:
    encoded = [checkpoint.tokenizer.encode(RenderedChat(word)) for word in ANSWERS]
    ids = [token for tokens in encoded for token in tokens]
    file = checkpoint.path / _LOGIT_SCORE
    declared = read_json(file) if file.is_file() else {}
    sentences = [declared.get(f"{name}_token_id", ids[i]) for i, name in enumerate(("false", "true"))]
    if [len(tokens) for tokens in encoded] != [1, 1] or sentences != ids:
        raise UserError(f'{checkpoint.name}: it does not score with "no" and "yes": choose a Qwen3-Reranker')
    return ids


DTYPES = {"float32": mx.float32, "bfloat16": mx.bfloat16, "float16": mx.float16}


def config_of(name: str) -> ModelConfig:
    """The configuration of the checkpoint called `name`; no weights are made or downloaded.

    Raises UserError as `load_checkpoint`.
    """
    if name.startswith(RANDOM_PREFIX):
        return read_config(Path(name), config_json(parse_shape(name.removeprefix(RANDOM_PREFIX))))[0]
    return read_config(find_folder(name, [_CONFIG]) / _CONFIG)[0]


def load_checkpoint(
    name: str | Path = "default",
    device: str | None = None,
    dtype: str | mx.Dtype | None = None,
    task: Task | Literal["auto"] = "generate",
    has_pictures: bool = False,
    draft_layer: str | None = None,
) -> Checkpoint:
    """Load the checkpoint called `name`; raises UserError, one line, for anything that you can fix.

    `name` is "default", a short name ("qwen3-0.6b", "qwen3-0.6b-4bit"), a hub id ("org/name"), a local
    folder, or "random:qwen3-0.6b" with options such as ",layers=2,bits=4" (see `random_checkpoint`).
    `device` "cpu" or "gpu" becomes MLX's default device; None leaves it alone. `dtype` None means as
    stored, but float32 on a CPU without the C++ kernels: MLX's own 16-bit arithmetic is slow and inaccurate.
    Packed weights stay packed: for them `dtype` applies to scales, biases and activations. `task` chooses the
    output head, as `task_of` and `with_head` say. `has_pictures`: with the tower that reads pictures, where
    there is one. `draft_layer` is the name of a folder with a layer that drafts, in place of the model's own.
    """
    set_buffer_limits()
    select_device(device)
    wanted = _wanted_dtype(dtype)
    folder = find_folder(str(name))
    chosen = task_of(folder, task)
    config, quantization = read_config(folder / _CONFIG)
    # The tokenizer first, because it is smaller and may be missing as well.
    tokenizer = load_tokenizer(folder)
    layers = [find_folder(draft_layer)] if draft_layer is not None else []
    for layer in layers:
        require_draft_layer(layer, config)
    num_bytes = sum(file.stat().st_size for each in (folder, *layers) for file in weight_files(each))
    require_fit(f"the weights of {name}", num_bytes, 0, "choose a smaller model, or a 4-bit one")
    set_limits()
    if chosen != "generate" or not has_pictures:
        config = replace(config, pictures=None)
    weights, loaded = load_weights(folder, config, quantization, wanted, may_lack_head=chosen == "embed")
    for layer in layers:
        weights |= load_draft_layer(layer, config, loaded)
    if PATCHES not in weights:
        config = replace(config, pictures=None)
    return with_head(Checkpoint(str(name), folder, config, weights, tokenizer, loaded), chosen)


def select_device(device: str | None) -> None:
    """Make "cpu" or "gpu" MLX's default device; None leaves it alone. Raises UserError if there is none."""
    if device is None:
        return
    if device not in ("cpu", "gpu"):
        raise UserError(f"unknown device {device!r}: choose cpu or gpu")
    chosen = mx.Device(mx.DeviceType.cpu if device == "cpu" else mx.DeviceType.gpu)
    if not mx.is_available(chosen):
        raise UserError("MLX finds no GPU here: use device cpu, or install MLX for your GPU")
    mx.set_default_device(chosen)


def _wanted_dtype(dtype: str | mx.Dtype | None) -> mx.Dtype | None:
    if dtype is None:
        is_plain_cpu = mx.default_device() == mx.cpu and not native.can_run()
        return mx.float32 if is_plain_cpu else None
    for name, known in DTYPES.items():
        if dtype == (name if isinstance(dtype, str) else known):
            return known
    raise UserError(f"unknown dtype {str(dtype)!r}: choose one of {', '.join(DTYPES)}")
