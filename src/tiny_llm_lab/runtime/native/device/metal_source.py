"""Reads the given Metal kernels: each file has functions first, and then the body of the kernel."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, cast

import mlx.core as mx

LANES: Final = 32  # threads of a simdgroup
_BODY_MARK: Final = "// --- body ---"


def metal_kernel(name: str, inputs: Sequence[str], outputs: Sequence[str]) -> Callable[..., list[mx.array]]:
    """The kernel of NAME.metal. Each new kernel object is a library to compile: keep it."""
    header, _, body = (
        Path(__file__).with_name(f"{name}.metal").read_text(encoding="utf-8").partition(_BODY_MARK)
    )
    kernel = mx.fast.metal_kernel(
        name=f"tiny_llm_{name}", input_names=inputs, output_names=outputs, source=body, header=header
    )
    return cast(Callable[..., list[mx.array]], kernel)
