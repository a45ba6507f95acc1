"""A model whose numbers overflow while it computes is refused before it answers anybody."""

import asyncio

import mlx.core as mx
import pytest
from tests.helpers.checkpoints import edit_tensors

from tiny_llm_lab import LLM
from tiny_llm_lab.serving.async_engine.model import on_thread, run_model
from tiny_llm_lab.serving.options.engine_settings import ModelSettings
from tiny_llm_lab.serving.options.model_options import load
from tiny_llm_lab.types import UserError

WAYS = {
    "the commands": lambda model: load(ModelSettings(model, "ref", "cpu", "float16")),
    "mlx-lm": lambda model: load(ModelSettings(model, "mlx-lm", "cpu", "float16")),
    "LLM": lambda model: LLM(model, dtype=mx.float16),
    "the server": lambda model: asyncio.run(run_model(on_thread(ModelSettings(model, dtype="float16")))),
}


def test_one_logit_that_the_dtype_cannot_hold_is_refused(copy):
    folder = copy("random:qwen3-shrunk,tied=0")
    head = mx.concatenate([mx.full((1, 64), 6e4), mx.zeros((319, 64))])
    edit_tensors(folder, {"lm_head.weight": head, "model.norm.weight": mx.full((64,), 1e3)})
    with pytest.raises(UserError, match="its logits in float16 are NaN or infinite"):
        WAYS["the commands"](str(folder))


@pytest.mark.parametrize("way", WAYS)
def test_a_sum_that_the_dtype_cannot_hold_is_refused(copy, way):
    """Weights that float16 can hold, in sums that it cannot."""
    folder = copy("random:qwen3-shrunk")
    shapes = {"up": (192, 64), "down": (64, 192)}
    edit_tensors(folder, {f"model.layers.0.mlp.{k}_proj.weight": mx.full(v, 6e4) for k, v in shapes.items()})
    with pytest.raises(UserError) as caught:
        WAYS[way](str(folder))
    cure = "choose another --dtype, or fetch the whole checkpoint again"
    assert str(caught.value) == f"{folder}: its logits in float16 are NaN or infinite: {cure}"
    load(ModelSettings(str(folder), "ref", "cpu", "float32"))
