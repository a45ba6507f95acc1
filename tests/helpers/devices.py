"""Where a test computes."""

from collections.abc import Iterator
from contextlib import contextmanager

import mlx.core as mx
import pytest

from tiny_llm_lab.runtime import native


@contextmanager
def on_cpu(kernels: str) -> Iterator[None]:
    """On the CPU; models that are built meanwhile run on the operators that `kernels` names."""
    before = mx.default_device()
    mx.set_default_device(mx.cpu)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(native.VARIABLE, kernels)
            yield
    finally:
        mx.set_default_device(before)
