"""mlx-lm behind the seam holds the weights of a checkpoint once, under any name."""

import mlx.core as mx
import pytest
from tests.helpers.checkpoints import edit_json, tensors_of

from tiny_llm_lab import load_checkpoint, load_solution
from tiny_llm_lab.types import UserError


def test_two_engines_hold_the_weights_once():
    checkpoint = load_checkpoint("random:qwen3-0.6b,layers=2,vocab=4096", dtype="float32")
    before = mx.get_active_memory()
    model = load_solution("mlx-lm").build_model(checkpoint)
    assert mx.get_active_memory() - before < 1_000_000
    assert model.config.num_hidden_layers == 2


def test_weights_under_another_name(copy):
    folder = copy("random:qwen3-shrunk")
    (folder / "model.safetensors").rename(folder / "weights.safetensors")
    named = dict.fromkeys(tensors_of(folder, "weights.safetensors"), "weights.safetensors")
    edit_json(folder / "model.safetensors.index.json", weight_map=named)
    checkpoint = load_checkpoint(str(folder))
    with pytest.raises(UserError, match=r"mlx-lm reads only model\*\.safetensors: rename the weight files"):
        load_solution("mlx-lm").build_model(checkpoint)
