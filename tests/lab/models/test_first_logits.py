"""A model whose numbers overflow while it computes is refused before it answers anybody."""

import asyncio
from collections.abc import Callable

import mlx.core as mx
import pytest
from tests.helpers.checkpoints import Copy, edit_tensors

from tiny_llm_lab import LLM
from tiny_llm_lab.serving.async_engine.model import run_model
from tiny_llm_lab.serving.options.engine_settings import ModelSettings
from tiny_llm_lab.serving.options.model_options import load
from tiny_llm_lab.types import UserError

WAYS: dict[str, Callable[[str], object]] = {
    "the commands": lambda model: load(ModelSettings(model, "ref", "cpu", "float16")),
    "mlx-lm": lambda model: load(ModelSettings(model, "mlx-lm", "cpu", "float16")),
    "LLM": lambda model: LLM(model, dtype=mx.float16),
    "the server": lambda model: asyncio.run(run_model(ModelSettings(model, dtype="float16"))),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_sum_that_the_dtype_cannot_hold_is_refused(copy: Copy, way: str) -> None:
    """Weights that float16 can hold, in sums that it cannot."""
    folder = copy("random:qwen3-shrunk")
    edit_tensors(folder, model__layers__0__mlp__up_proj__weight=mx.full((192, 64), 6e4))
    edit_tensors(folder, model__layers__0__mlp__down_proj__weight=mx.full((64, 192), 6e4))
    with pytest.raises(UserError) as caught:
        WAYS[way](str(folder))
    cure = "choose another --dtype, or fetch the whole checkpoint again"
    assert str(caught.value) == f"{folder}: its logits in float16 are not numbers: {cure}"
    load(ModelSettings(str(folder), "ref", "cpu", "float32"))
