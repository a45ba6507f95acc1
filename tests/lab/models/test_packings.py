"""Packings other than MLX's affine one: loaded, mixed, computed as by mlx-lm, or refused by name."""

import json
import struct
from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest
from tests.helpers.checkpoints import complaint, differing, edit_json, edit_tensors, save_tensors, tensors_of
from tests.helpers.tolerance import EXACT, F32_MODEL, as_float64, assert_close

from tiny_llm_lab import load_checkpoint, load_solution
from tiny_llm_lab.runtime.models.registry import find_folder
from tiny_llm_lab.types import QuantizedWeights

MODES = {
    "mxfp4": {"bits": 4, "group_size": 32, "mode": "mxfp4"},
    "mxfp8": {"bits": 8, "group_size": 32, "mode": "mxfp8"},
    "nvfp4": {"bits": 4, "group_size": 16, "mode": "nvfp4"},
}
AFFINE = {"bits": 8, "group_size": 64, "mode": "affine"}
Q_PROJ = "model.layers.1.self_attn.q_proj"
NAMES = ["random:qwen3-shrunk", "random:qwen2.5-shrunk", "random:qwen3-moe-shrunk"]
FP8 = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [48, 40]}


def load(folder, dtype="float32"):
    return load_checkpoint(str(folder), dtype=dtype)


def quantize(folder, default, others, declared=True, dtype="float32"):
    """Pack all matrices of the dense checkpoint in `folder`, experts stacked, as mlx-lm's conversion does."""
    tensors = {}
    for name, w in load(folder, dtype).weights.items():
        assert isinstance(w, mx.array)
        if w.ndim == 1:
            tensors[name] = w
            continue
        module = name.removesuffix(".weight")
        parts = mx.quantize(w, **others.get(module, default))
        named = zip(("weight", "scales", "biases"), parts, strict=False)
        tensors |= {f"{module}.{part}": array for part, array in named}
    save_tensors(folder, tensors)
    quantization = dict(default) | (dict(others) if declared else {})
    edit_json(folder / "config.json", quantization=quantization, quantization_config=quantization)


def logits(solution, checkpoint):
    tokens = mx.array(np.random.default_rng(0).integers(0, 320, (1, 80)).astype(np.int32))
    return load_solution(solution).build_model(checkpoint)(tokens)


def of_mode(weights):
    modes = [w.mode for w in weights.values() if isinstance(w, QuantizedWeights)]
    return {mode: modes.count(mode) for mode in modes}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", NAMES)
def test_logits_equal_those_of_mlx_lm(copy, name, mode):
    folder = copy(name)
    quantize(folder, MODES[mode], {})
    checkpoint, stored = load(folder), tensors_of(folder)
    assert list(of_mode(checkpoint.weights)) == [mode]
    w = checkpoint.weights["model.embed_tokens.weight"]
    assert isinstance(w, QuantizedWeights) and w.biases is None and w.scales.dtype == mx.uint8
    assert_close(w.weight, stored["model.embed_tokens.weight"], EXACT)
    assert (w.bits, w.group_size) == (MODES[mode]["bits"], MODES[mode]["group_size"])
    assert w.nbytes == w.weight.nbytes + w.scales.nbytes
    got = logits("ref", checkpoint)
    assert_close(got, logits("mlx-lm", checkpoint), F32_MODEL, legend="[B, L, V]", dtype=mx.float32)


@pytest.mark.parametrize("declared", [True, False])
@pytest.mark.parametrize("default", ["mxfp4", "affine"])
def test_mixed_modes(copy, default, declared):
    """Modules of one layer differ, so that q, k and v cannot be multiplied together."""
    folder, packings = copy("random:qwen3-shrunk"), MODES | {"affine": AFFINE}
    others = {
        Q_PROJ: packings["mxfp8"],
        "model.layers.0.mlp.down_proj": packings["nvfp4"],
        "model.layers.2.mlp.up_proj": packings["affine" if default == "mxfp4" else "mxfp4"],
    }
    quantize(folder, packings[default], others, declared)
    checkpoint = load(folder)
    assert sorted(of_mode(checkpoint.weights)) == ["affine", "mxfp4", "mxfp8", "nvfp4"]
    w = checkpoint.weights[f"{Q_PROJ}.weight"]
    assert isinstance(w, QuantizedWeights) and w.mode == "mxfp8"
    assert_close(logits("ref", checkpoint), logits("mlx-lm", checkpoint), F32_MODEL, legend="[B, L, V]")


@pytest.mark.parametrize("mode", MODES)
def test_activations_keep_the_dtype_of_the_norms(copy, mode, monkeypatch):
    """Their scales have 8 bits and say nothing about it."""
    folder = copy("random:qwen3-shrunk,bits=16")
    quantize(folder, MODES[mode], {}, dtype="bfloat16")
    with monkeypatch.context() as patch:
        gpu = mx.Device(mx.DeviceType.gpu)
        patch.setattr(mx, "default_device", lambda: gpu)  # on a CPU these tests have float32
        checkpoint = load_checkpoint(str(folder))
    w = checkpoint.weights["model.embed_tokens.weight"]
    assert checkpoint.dtype == mx.bfloat16 and isinstance(w, QuantizedWeights)
    assert w.dequantized().dtype == logits("ref", checkpoint).dtype == mx.bfloat16
    exact = as_float64(logits("ref", load(folder)))
    error = as_float64(logits("ref", checkpoint)) - exact
    assert np.sqrt(np.mean(error**2) / np.mean(exact**2)) < 0.06


def test_the_dtype_of_an_affine_embedding_is_that_of_its_scales(copy, monkeypatch):
    folder = copy("random:qwen3-shrunk,bits=4")
    edit_tensors(folder, {"model.norm.weight": mx.ones(64, mx.float32)})
    gpu = mx.Device(mx.DeviceType.gpu)
    monkeypatch.setattr(mx, "default_device", lambda: gpu)
    assert load_checkpoint(str(folder)).dtype == mx.bfloat16


@pytest.mark.parametrize(("mode", "scale"), [("mxfp4", 255), ("mxfp8", 255), ("nvfp4", 127), ("nvfp4", 255)])
def test_a_scale_that_is_no_number(copy, mode, scale):
    folder = copy("random:qwen3-shrunk")
    quantize(folder, MODES[mode], {})
    name = f"{Q_PROJ}.scales"
    scales = np.array(tensors_of(folder)[name])
    scales[3, 1] = scale
    edit_tensors(folder, {name: mx.array(scales)})
    said = f"tensor {name} has NaN or infinite numbers: fetch the file again"
    assert complaint(folder) == f"{folder}/model.safetensors: {said}"


def decoded_e4m3(stored):
    """Sign, 4 bits of exponent with a bias of 7, 3 bits of mantissa; exponent 0 is subnormal."""
    bits = stored.astype(np.int64)
    exponent, mantissa = bits >> 3 & 15, (bits & 7) / 8
    size = np.where(exponent == 0, mantissa * 2.0**-6, (1 + mantissa) * 2.0 ** (exponent - 7))
    return np.where(bits >> 7, -size, size)


def to_fp8(folder):
    """Rewrite the layers' matrices as transformers' fp8, blocks [48, 40]; returns what they stand for."""
    draw, tensors, want = np.random.default_rng(0), tensors_of(folder), {}
    entries = {}
    for name, tensor in tensors.items():
        if "_proj.weight" not in name:
            entries[name] = ("F32", tensor.shape, np.array(tensor).tobytes())
            continue
        rows, columns = tensor.shape
        stored = draw.integers(0, 0x7F, (rows, columns)).astype(np.uint8)
        stored |= (draw.integers(0, 2, stored.shape) << 7).astype(np.uint8)
        blocks = (-(-rows // 48), -(-columns // 40))
        scales = draw.uniform(1e-3, 2e-3, blocks).astype(np.float32)
        spread = np.repeat(np.repeat(scales, 48, axis=0)[:rows], 40, axis=1)[:, :columns]
        want[name] = decoded_e4m3(stored) * spread
        entries[name] = ("F8_E4M3", (rows, columns), stored.tobytes())
        entries[f"{name}_scale_inv"] = ("F32", blocks, scales.tobytes())
    header, end = {}, 0
    for name, (dtype, shape, data) in entries.items():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [end, end + len(data)]}
        end += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    content = struct.pack("<Q", len(text)) + text + b"".join(data for _, _, data in entries.values())
    (folder / "model.safetensors").write_bytes(content)
    return want


@pytest.mark.parametrize("name", NAMES)
def test_fp8_becomes_the_numbers_it_stands_for(copy, name):
    folder = copy(name)
    want = to_fp8(folder)
    edit_json(folder / "config.json", quantization_config=FP8)
    checkpoint = load(folder)
    assert len(want) > 10
    for key, matrix in want.items():
        layer, _, expert = key.partition(".experts.")
        held = checkpoint.weights[key if not expert else f"{layer}.switch_mlp.{expert.partition('.')[2]}"]
        assert isinstance(held, mx.array) and held.dtype == mx.float32
        held = held[int(expert.partition(".")[0])] if expert else held
        assert_close(held, matrix.astype(np.float32), EXACT, what=key)
    assert_close(logits("ref", checkpoint), logits("mlx-lm", checkpoint), F32_MODEL, legend="[B, L, V]")


def test_modules_that_fp8_leaves_alone(copy):
    folder = copy("random:qwen3-shrunk", quantization_config={**FP8, "scale_fmt": None})
    assert differing(folder, "random:qwen3-shrunk") == []


# Checkpoints with experts: numbered as Hugging Face's or stacked as mlx-lm's, loaded as one thing


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
