"""How exact the other factor of a product with packed weights is: --activation-bits."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final, Literal

import mlx.core as mx

from tiny_llm_lab.runtime.models.weights.layout import EMBEDDING
from tiny_llm_lab.runtime.models.weights.tower_layout import TOWER
from tiny_llm_lab.runtime.native import VARIABLE, supports_packing
from tiny_llm_lab.runtime.native.settings import kernels_mode
from tiny_llm_lab.types import KernelOps, QuantizedWeights, UserError, Weight

AUTO: Final = "auto"
ActivationBits = int | Literal["auto"]
_NEEDS: Final = "--activation-bits 8 needs our C++ kernels on a CPU"
_CURE: Final = "leave it out"
# What chooses experts is small, and rounding would have a tenth of the tokens choose others.
_EXACT: Final = ("mlp.gate.weight", "mlp.shared_expert_gate.weight")
# "auto": 8 bits cost the logits two to eight times what bfloat16 costs (results/activation-error.json).
AUTO_BITS: Final = 16


def with_activation_bits(weights: Mapping[str, Weight], bits: int) -> dict[str, Weight]:
    """The same weights; packed matrices that C++ multiplies with ask for `bits`, but no router or tower."""
    # An embedding with an output head next to it is only looked up.
    unused = f"{EMBEDDING}.weight" if "lm_head.weight" in weights else ""
    return {
        name: replace(w, activation_bits=bits)
        if isinstance(w, QuantizedWeights)
        and name != unused
        and not name.endswith(_EXACT)
        and not name.startswith(TOWER)
        and supports_packing(w.bits, w.group_size, w.mode)
        else w
        for name, w in weights.items()
    }


def used_bits(weights: Mapping[str, Weight], ops: KernelOps | None) -> int:
    """The bits that a model of `weights` on `ops` computes with: 16, or what its matrices ask of C++."""
    packed = [w.activation_bits for w in weights.values() if isinstance(w, QuantizedWeights)]
    return min(packed, default=16) if ops is not None and ops.name == "cpp" else 16


def require_kernels(asked: ActivationBits, solution: str, device: str | None) -> None:
    """Raise UserError for 8 bits where no C++ kernels can run, and for what is neither 8, 16 nor "auto"."""
    if asked not in (8, 16, AUTO):
        raise UserError(f"--activation-bits must be 16, 8 or auto, not {asked!r}")
    if asked != 8:
        return
    if solution == "mlx-lm":
        raise UserError(f"{_NEEDS}: choose another --solution, or {_CURE}")
    if device == "gpu" or (device is None and mx.default_device() == mx.gpu):
        raise UserError(f"{_NEEDS}: choose --device cpu, or {_CURE}")
    if kernels_mode() in ("mlx", "off"):
        raise UserError(f"{_NEEDS}: unset {VARIABLE}, or {_CURE}")


def require_rounding(name: str, weights: Mapping[str, Weight], ops: KernelOps | None) -> None:
    """Raise UserError unless a model called `name`, whose weights ask for 8 bits, computes with them."""
    if ops is None or ops.name != "cpp":
        raise UserError(f"{_NEEDS}, and {name} runs without: {_CURE}")
    if used_bits(weights, ops) != 8:
        raise UserError(
            f"--activation-bits 8 needs affine weights of 4 or 8 bits in groups of 32, 64 or 128, and {name} "
            f"has none: {_CURE}"
        )
