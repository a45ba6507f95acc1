"""MLX's fused operators as a model on this machine has them."""

import mlx.core as mx
import pytest

from tiny_llm_lab.runtime.native.mlx_ops import MlxOps


@pytest.fixture
def ops():
    return MlxOps(widens=mx.default_device() == mx.cpu)


@pytest.fixture(params=[mx.float32, mx.float16, mx.bfloat16], ids=str)
def dtype(request):
    found = request.param
    return found
