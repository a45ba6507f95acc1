"""From a name to a loaded checkpoint."""

from pathlib import Path
from typing import Literal

import mlx.core as mx

from tiny_llm_lab.runtime import native
from tiny_llm_lab.runtime.memory import require_fit, set_limits
from tiny_llm_lab.runtime.models.config.model_config import read_config
from tiny_llm_lab.runtime.models.output_head import task_of, with_head
from tiny_llm_lab.runtime.models.registry import find_folder
from tiny_llm_lab.runtime.models.text.tokenizer import load_tokenizer
from tiny_llm_lab.runtime.models.weights.read_weights import load_weights
from tiny_llm_lab.runtime.models.weights.weight_files import weight_files
from tiny_llm_lab.runtime.native.device.command_buffers import set_buffer_limits
from tiny_llm_lab.types import Checkpoint, Task, UserError

DTYPES = {"float32": mx.float32, "bfloat16": mx.bfloat16, "float16": mx.float16}


def load_checkpoint(
    name: str | Path = "default",
    device: str | None = None,
    dtype: str | mx.Dtype | None = None,
    task: Task | Literal["auto"] = "generate",
) -> Checkpoint:
    """Load the checkpoint called `name`; raises UserError, one line, for anything that you can fix.

    `name` is "default", a short name ("qwen3-0.6b", "qwen3-0.6b-4bit"), a hub id ("org/name"), a local
    folder, or "random:qwen3-0.6b" with options such as ",layers=2,bits=4" (see `random_checkpoint`).
    `device` "cpu" or "gpu" becomes MLX's default device; None leaves it alone. `dtype` None means as
    stored, but float32 on a CPU without the C++ kernels: MLX's own 16-bit arithmetic is slow and inaccurate.
    Packed weights stay packed: for them `dtype` applies to scales, biases and activations. `task` chooses the
    output head, as `task_of` and `with_head` say.
    """
    set_buffer_limits()
    _select_device(device)
    wanted = _wanted_dtype(dtype)
    folder = find_folder(str(name))
    chosen = task_of(folder, task)
    config, quantization = read_config(folder / "config.json")
    # The tokenizer first, because it is smaller and may be missing as well.
    tokenizer = load_tokenizer(folder)
    num_bytes = sum(file.stat().st_size for file in weight_files(folder))
    require_fit(f"the weights of {name}", num_bytes, 0, "choose a smaller model, or a 4-bit one")
    set_limits()
    weights, loaded = load_weights(folder, config, quantization, wanted, may_lack_head=chosen == "embed")
    return with_head(Checkpoint(str(name), folder, config, weights, tokenizer, loaded), chosen)


def _select_device(device: str | None) -> None:
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
