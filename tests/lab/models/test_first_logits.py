"""A model whose numbers overflow while it computes is refused before it answers anybody."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import mlx.core as mx
import pytest
from tests.helpers.checkpoints import edit_tensors

from tiny_llm_lab import LLM, cli
from tiny_llm_lab.async_engine.model import ModelSettings, run_model
from tiny_llm_lab.commands.options import load
from tiny_llm_lab.types import UserError

Copy = Callable[[str], Path]
DTYPES = {"float16": mx.float16, "float32": mx.float32}
WAYS: dict[str, Callable[[str, str], object]] = {
    "the commands": lambda model, dtype: load(model, "ref", "cpu", dtype),
    "mlx-lm": lambda model, dtype: load(model, "mlx-lm", "cpu", dtype),
    "LLM": lambda model, dtype: LLM(model, dtype=DTYPES[dtype]),
    "the server": lambda model, dtype: asyncio.run(run_model(ModelSettings(model, dtype=dtype))),
}


@pytest.fixture
def overflowing(copy: Copy) -> str:
    """Weights that float16 can hold, in a sum that it cannot, and neither can float32 in the last layer."""
    folder = copy("random:qwen3-shrunk")
    edit_tensors(folder, model__layers__0__mlp__down_proj__weight=mx.full((64, 192), 6e4))
    edit_tensors(folder, model__layers__0__mlp__up_proj__weight=mx.full((192, 64), 6e4))
    return str(folder)


@pytest.mark.parametrize("way", WAYS)
def test_a_sum_that_the_dtype_cannot_hold_is_refused(overflowing: str, way: str) -> None:
    with pytest.raises(UserError) as caught:
        WAYS[way](overflowing, "float16")
    assert str(caught.value) == (
        f"{overflowing}: its logits are not numbers: sums overflow in float16, or its weights are damaged: "
        "choose --dtype bfloat16 or float32, or fetch the whole checkpoint again"
    )
    WAYS["the commands"](overflowing, "float32")


def test_weights_too_large_for_any_dtype(copy: Copy, capsys: pytest.CaptureFixture[str]) -> None:
    folder = copy("random:qwen3-shrunk")
    edit_tensors(folder, model__layers__1__self_attn__q_proj__weight=mx.full((128, 64), 3e38))
    assert cli.main(["main", "--model", str(folder), "--prompt", "Hi", "--max-tokens", "3"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.splitlines()[-1] == (
        f"error: {folder}: its logits are not numbers: sums overflow in float32, or its weights are damaged: "
        "fetch the whole checkpoint again"
    )
