"""How far MLX's gathered products are from float64 on a CPU, by operator, bits and dtype.

python -m tests.helpers.gather_error
"""

import statistics
from typing import Final

import mlx.core as mx
import numpy as np

BITS: Final = (2, 4, 8)
DTYPES: Final = {"float32": mx.float32, "float16": mx.float16, "bfloat16": mx.bfloat16}
NUM_EXPERTS, NUM_OUTPUTS, NUM_INPUTS, NUM_ROWS = 8, 64, 256, 32
SEEDS: Final = range(5)


def main() -> int:
    for bits in (None, *BITS):
        for name, dtype in DTYPES.items():
            found = [error(bits, dtype, seed) for seed in SEEDS]
            errors = [each for each in found if each is not None]
            print(f"{case(bits)}, {name}: {_told(errors)}")
    return 0


def case(bits: int | None) -> str:
    """The operator's name, with the bits of its weights if they are packed."""
    return "gather_mm" if bits is None else f"gather_qmm, {bits} bits"


def error(bits: int | None, dtype: mx.Dtype, seed: int) -> float | None:
    """The root mean square of the error over that of the result; None where the operator refuses.

    Weights of `bits` bits in groups of 64, or plain ones of `dtype` where that is None. What is rounded
    before the product, inputs and weights, is no error of it.
    """
    rng = np.random.default_rng(seed)
    with mx.stream(mx.cpu):
        weights = mx.array(rng.normal(size=(NUM_EXPERTS, NUM_OUTPUTS, NUM_INPUTS)).astype(np.float32))
        x = mx.array(rng.normal(size=(NUM_ROWS, 1, NUM_INPUTS)).astype(np.float32)).astype(dtype)
        experts = mx.array(rng.integers(NUM_EXPERTS, size=NUM_ROWS).astype(np.uint32))
        if bits is None:
            weights = weights.astype(dtype)
            exact = _float64(weights)
        else:
            packed, scales, biases = mx.quantize(weights.astype(dtype), group_size=64, bits=bits)
            parts = (scales.astype(mx.float32), biases.astype(mx.float32))
            exact = _float64(mx.dequantize(packed, *parts, group_size=64, bits=bits))
        try:
            if bits is None:
                got = mx.gather_mm(x, weights.swapaxes(-1, -2), rhs_indices=experts)
            else:
                got = mx.gather_qmm(x, packed, scales, biases, rhs_indices=experts, group_size=64, bits=bits)
            mx.eval(got)
        except (RuntimeError, ValueError):
            return None
        want = np.einsum("tzi,toi->tzo", _float64(x), exact[np.array(experts)])
        return float(np.sqrt(np.mean((_float64(got) - want) ** 2) / np.mean(want**2)))


def _float64(x: mx.array) -> np.ndarray:
    return np.array(x.astype(mx.float32)).astype(np.float64)


def _told(errors: list[float]) -> str:
    if not errors:
        return "refused"
    return f"{statistics.median(errors):.2g} ({min(errors):.2g} to {max(errors):.2g})"


if __name__ == "__main__":
    raise SystemExit(main())
