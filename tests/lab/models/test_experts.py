"""Checkpoints with experts: numbered as Hugging Face's or stacked as mlx-lm's, loaded as one thing."""

import json
from dataclasses import replace

import mlx.core as mx
import pytest
from tests.helpers.checkpoints import complaint, differing, edit_json, edit_tensors, save_tensors, tensors_of

from tiny_llm_lab import load_checkpoint
from tiny_llm_lab.runtime.models.registry import find_folder
from tiny_llm_lab.types import QuantizedWeights

DENSE, PACKED = "random:qwen3-moe-shrunk", "random:qwen3-moe-shrunk,bits=4"
MLP = "model.layers.1.mlp"
PROJECTIONS = ("gate_proj", "up_proj", "down_proj")


def test_the_configuration_of_qwen3_moe():
    config = load_checkpoint(DENSE).config
    assert (config.num_experts, config.num_experts_per_tok, config.moe_intermediate_size) == (8, 3, 256)
    assert config.norm_topk_prob and config.qk_norm and not config.qkv_bias
    assert [config.has_experts(layer) for layer in range(3)] == [True] * 3


def test_the_number_of_experts_under_the_name_of_transformers_5(copy):
    folder = copy(DENSE, num_experts=..., num_local_experts=8)
    assert load_checkpoint(str(folder)).config == load_checkpoint(DENSE).config


def test_which_layers_have_experts(copy):
    config = load_checkpoint(f"{DENSE},layers=6,sparse_step=2").config
    assert [config.has_experts(layer) for layer in range(6)] == [False, True] * 3
    assert not any(load_checkpoint("random:qwen3-shrunk").config.has_experts(layer) for layer in range(3))


def test_layers_that_are_named_dense_have_no_experts(copy):
    folder = copy(DENSE)
    dense = {f"{MLP}.{part}.weight": mx.ones((192, 64)) for part in PROJECTIONS[:2]}
    dense[f"{MLP}.down_proj.weight"] = mx.ones((64, 192))
    others = {name: tensor for name, tensor in tensors_of(folder).items() if not name.startswith(f"{MLP}.")}
    save_tensors(folder, others | dense)
    edit_json(folder / "config.json", mlp_only_layers=[1])
    checkpoint = load_checkpoint(str(folder))
    assert [checkpoint.config.has_experts(layer) for layer in range(3)] == [True, False, True]
    assert {name for name in checkpoint.weights if name.startswith(f"{MLP}.")} == dense.keys()
    # A step of 2 gives experts to layer 1 alone, which is named dense: both rules hold.
    assert not any(replace(checkpoint.config, decoder_sparse_step=2).has_experts(layer) for layer in range(3))


def test_random_checkpoints_are_stored_as_real_ones_are():
    dense, packed = (tensors_of(find_folder(name)) for name in (DENSE, PACKED))
    assert dense[f"{MLP}.experts.7.down_proj.weight"].shape == (64, 256)
    assert packed[f"{MLP}.switch_mlp.down_proj.scales"].shape == (8, 64, 4)


def numbered(folder):
    """The tensors of a checkpoint with its experts numbered."""
    tensors = {}
    for name, tensor in tensors_of(folder).items():
        experts = enumerate(tensor) if "switch_mlp" in name else ()
        found = {name.replace("switch_mlp", f"experts.{number}"): each for number, each in experts}
        tensors |= found or {name: tensor}
    return tensors


def stacked(folder):
    """The tensors of a checkpoint with those of all experts in one."""
    tensors = tensors_of(folder)
    for name in [name for name in tensors if ".experts.0." in name]:
        parts = [name.replace(".experts.0.", f".experts.{number}.") for number in range(12)]
        tensors[name.replace("experts.0", "switch_mlp")] = mx.stack([tensors.pop(part) for part in parts])
    return tensors


@pytest.mark.parametrize(("name", "other"), [(DENSE, stacked), (PACKED, numbered)])
def test_numbered_and_stacked_experts_are_the_same(copy, name, other):
    """From ten experts on the order of names is another: 1, 10, 11, 2."""
    folder = copy(f"{name},experts=12")
    save_tensors(folder, other(folder))
    assert any(".experts.11." in tensor for tensor in tensors_of(folder)) == (other is numbered)
    assert differing(folder, f"{name},experts=12") == []


def test_a_router_of_its_own_precision(copy):
    """mlx-lm's converted checkpoints keep the router in 8 bits."""
    folder, gate = copy(PACKED), f"{MLP}.gate"
    w, scales, biases = mx.quantize(mx.random.normal((8, 64), key=mx.random.key(0)), bits=8)
    parts = {f"{gate}.weight": w, f"{gate}.scales": scales, f"{gate}.biases": biases}
    edit_tensors(folder, parts)
    quantization = json.loads((folder / "config.json").read_text())["quantization"]
    edit_json(folder / "config.json", quantization=quantization | {gate: {"group_size": 64, "bits": 8}})
    loaded = load_checkpoint(str(folder)).weights[f"{gate}.weight"]
    assert isinstance(loaded, QuantizedWeights) and loaded.bits == 8


@pytest.mark.parametrize("mode", ["affine", "mxfp4"])
def test_experts_that_are_packed_in_different_ways(copy, mode):
    """In other bits, or in as many of another mode."""
    folder = copy(f"{PACKED},group=32")
    tensors, module = numbered(folder), f"{MLP}.experts.3.up_proj"
    del tensors[f"{module}.biases"]
    bits = 8 if mode == "affine" else 4
    drawn = mx.random.normal((256, 64), key=mx.random.key(0))
    parts = mx.quantize(drawn, group_size=32, bits=bits, mode=mode)
    named = zip(("weight", "scales", "biases"), parts, strict=False)
    save_tensors(folder, tensors | {f"{module}.{part}": array for part, array in named})
    line = "its experts are packed in different ways: choose another checkpoint"
    assert complaint(folder) == f"{MLP}.switch_mlp.up_proj.weight: {line}"


def test_an_expert_that_is_missing(copy):
    folder = copy(DENSE)
    edit_tensors(folder, {f"{MLP}.experts.5.up_proj.weight": None})
    assert complaint(folder) == (
        f"{folder}: tensor {MLP}.experts.5.up_proj.weight is missing: fetch the whole checkpoint again"
    )


@pytest.mark.parametrize("change", ["active=9", "experts=0", "expert_inner=0"])
def test_shapes_that_cannot_be(change):
    assert complaint(f"{DENSE},{change}") == (
        f"{DENSE},{change}: experts, active, expert_inner need a model with experts, and active 1 to experts"
    )
