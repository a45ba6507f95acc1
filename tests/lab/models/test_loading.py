"""`load_checkpoint`: what comes out of a sound folder. What is said about others: test_loading_errors."""

import json

import mlx.core as mx
import numpy as np
import pytest
from tests.helpers.checkpoints import SHRUNK, differing, edit_json, edit_tensors, shard, tensors_of

from tiny_llm_lab import load_checkpoint
from tiny_llm_lab.types import ModelConfig, QuantizedWeights, UserError

Q_PROJ = "model.layers.1.self_attn.q_proj"


def load(folder, **settings):
    return load_checkpoint(str(folder), **settings)


def equal(a, b):
    assert isinstance(a, mx.array) and isinstance(b, mx.array)
    return bool(mx.array_equal(a, b))


def test_the_configuration_of_qwen3():
    sizes = {"vocab_size": 320, "hidden_size": 64, "num_hidden_layers": 3, "intermediate_size": 192}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32}
    numbers = {"rms_norm_eps": 1e-6, "rope_theta": 1e6, "max_position_embeddings": 512}
    flags = {"tie_word_embeddings": True, "qkv_bias": False, "qk_norm": True}
    want = ModelConfig(model_type="qwen3", **sizes, **heads, **numbers, **flags)
    assert load_checkpoint("random:qwen3-shrunk").config == want


def test_the_configuration_of_qwen2_without_head_dim(copy):
    folder = copy("random:qwen2.5-shrunk", head_dim=..., num_key_value_heads=2)
    config = load(folder).config
    assert (config.qkv_bias, config.qk_norm, config.head_dim) == (True, False, 16)
    assert not config.tie_word_embeddings


THETAS = [
    {"rope_theta": 5000.0},
    {"rope_theta": ..., "rope_parameters": {"rope_theta": 5000.0, "rope_type": "default"}},
    {"rope_theta": 5000.0, "rope_scaling": {"type": "default"}},
]


@pytest.mark.parametrize("changes", THETAS)
def test_rope_theta_wherever_transformers_put_it(copy, changes):
    folder = copy("random:qwen3-shrunk", **changes)
    assert load(folder).config.rope_theta == 5000.0


@pytest.mark.parametrize("name", SHRUNK)
def test_weights_are_those_of_the_file(name):
    checkpoint = load_checkpoint(name, dtype="float32")
    stored = tensors_of(checkpoint.path)
    assert checkpoint.name == name and checkpoint.dtype == mx.float32
    assert checkpoint.weights.keys() == stored.keys()
    assert all(equal(checkpoint.weights[key], tensor) for key, tensor in stored.items())


def test_shards(copy):
    folder = copy("random:qwen3-shrunk")
    shard(folder)
    assert differing(folder, "random:qwen3-shrunk") == []


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
@pytest.mark.parametrize("group", [32, 64])
def test_packed_weights_stay_packed(bits, group):
    name = f"random:qwen3-shrunk,tied=0,bits={bits},group={group}"
    checkpoint = load_checkpoint(name, dtype="float32")
    stored = tensors_of(checkpoint.path)
    for module in (Q_PROJ, "model.embed_tokens", "lm_head"):
        w = checkpoint.weights[f"{module}.weight"]
        assert isinstance(w, QuantizedWeights) and (w.bits, w.group_size) == (bits, group)
        assert equal(w.weight, stored[f"{module}.weight"]) and w.weight.dtype == mx.uint32
        assert w.scales.dtype == w.biases.dtype == mx.float32
        assert equal(w.scales, stored[f"{module}.scales"]) and equal(w.biases, stored[f"{module}.biases"])
    assert not [key for key in checkpoint.weights if key.endswith((".scales", ".biases"))]


def requantize(folder, module, bits, group_size):
    dense = mx.array(np.random.default_rng(0).normal(size=(128, 64)).astype(np.float32))
    parts = zip(("weight", "scales", "biases"), mx.quantize(dense, group_size, bits), strict=True)
    edit_tensors(folder, {f"{module}.{part}": array for part, array in parts})


@pytest.mark.parametrize("declared", [True, False])
def test_modules_packed_in_another_way(copy, declared):
    folder = copy("random:qwen3-shrunk,bits=4")
    requantize(folder, Q_PROJ, bits=8, group_size=32)
    # mlx-lm infers what is not declared from the shapes, and so do we.
    overrides = {Q_PROJ: {"bits": 8, "group_size": 32}} if declared else {}
    edit_json(folder / "config.json", quantization={"bits": 4, "group_size": 64, **overrides})
    weights = load(folder).weights
    packings = {w.bits: w.group_size for w in weights.values() if isinstance(w, QuantizedWeights)}
    assert packings == {4: 64, 8: 32}
    assert isinstance(weights[f"{Q_PROJ}.weight"], QuantizedWeights)


@pytest.mark.parametrize("quantization", [{"bits": 4, "group_size": 64}, {"bits": None, "group_size": None}])
def test_null_means_the_default_packing(copy, quantization):
    """mlx-lm's mixed recipes (mixed_3_6 and others) write group_size null unless they are told one."""
    folder = copy("random:qwen3-shrunk,bits=4")
    requantize(folder, Q_PROJ, bits=6, group_size=64)
    override = {"bits": 6, "group_size": None, "mode": None}
    edit_json(folder / "config.json", quantization=quantization | {Q_PROJ: override})
    weights = load(folder).weights
    mixed, others = (weights[f"{module}.weight"] for module in (Q_PROJ, "model.embed_tokens"))
    assert isinstance(mixed, QuantizedWeights) and (mixed.bits, mixed.group_size) == (6, 64)
    assert isinstance(others, QuantizedWeights) and (others.bits, others.group_size) == (4, 64)


def test_modules_left_dense(copy):
    folder = copy("random:qwen3-shrunk,bits=4")
    dense = mx.ones((128, 64), mx.bfloat16)
    edit_tensors(folder, {f"{Q_PROJ}.weight": dense, f"{Q_PROJ}.scales": None, f"{Q_PROJ}.biases": None})
    quantization = {"bits": 4, "group_size": 64, "mode": "affine", Q_PROJ: False}
    edit_json(folder / "config.json", quantization=quantization)
    w = load(folder).weights[f"{Q_PROJ}.weight"]
    assert isinstance(w, mx.array) and equal(w, dense)


def test_a_cpu_gets_float32():
    mx.set_default_device(mx.cpu)
    checkpoint = load_checkpoint("random:qwen3-shrunk,bits=16")
    assert checkpoint.dtype == mx.float32
    assert {w.dtype for w in checkpoint.weights.values() if isinstance(w, mx.array)} == {mx.float32}


def test_a_gpu_gets_what_is_stored(monkeypatch):
    gpu = mx.Device(mx.DeviceType.gpu)
    monkeypatch.setattr(mx, "default_device", lambda: gpu)
    assert load_checkpoint("random:qwen3-shrunk,bits=16").dtype == mx.bfloat16
    assert load_checkpoint("random:qwen3-shrunk,bits=4").dtype == mx.bfloat16
    assert load_checkpoint("random:qwen3-shrunk").dtype == mx.float32


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", mx.float16, mx.float32])
def test_any_other_dtype(dtype):
    checkpoint = load_checkpoint("random:qwen3-shrunk,bits=4", dtype=dtype)
    assert checkpoint.dtype == (getattr(mx, dtype) if isinstance(dtype, str) else dtype)
    w = checkpoint.weights["model.embed_tokens.weight"]
    norm = checkpoint.weights["model.norm.weight"]
    assert isinstance(w, QuantizedWeights) and isinstance(norm, mx.array)
    assert w.scales.dtype == w.biases.dtype == norm.dtype == checkpoint.dtype


def test_one_stray_tensor_does_not_decide_the_dtype(copy):
    folder = copy("random:qwen3-shrunk")
    edit_tensors(folder, {"model.norm.weight": mx.ones(64, mx.float16)})
    weights = load(folder).weights.values()
    assert {w.dtype for w in weights if isinstance(w, mx.array)} == {mx.float32}


def test_loading_holds_one_tensor_twice_at_most():
    name = "random:qwen3-0.6b,layers=2,vocab=4096,bits=16"
    mx.clear_cache()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    weights = load_checkpoint(name, dtype="float32").weights
    size = sum(w.nbytes for w in weights.values() if isinstance(w, mx.array))
    largest = max(w.nbytes for w in weights.values() if isinstance(w, mx.array))
    assert mx.get_peak_memory() - before < size + largest


def test_the_device_becomes_the_default():
    load_checkpoint("random:qwen3-shrunk", device="cpu")
    assert mx.default_device() == mx.cpu


def test_a_gpu_that_is_not_there(monkeypatch):
    monkeypatch.setattr(mx, "is_available", lambda device: False)
    with pytest.raises(UserError, match="MLX finds no GPU here: use device cpu, or install MLX for your GPU"):
        load_checkpoint("random:qwen3-shrunk", device="gpu")


def test_every_declared_end_counts(copy):
    folder = copy("random:qwen3-shrunk", eos_token_id=7)
    edit_json(folder / "generation_config.json", eos_token_id=[8, 9])
    assert set(load(folder).tokenizer.eos_token_ids) == {7, 8, 9, 258}  # 258 is the tokenizer's own
    edit_json(folder / "generation_config.json", eos_token_id=8)
    edit_json(folder / "config.json", eos_token_id=None)
    assert set(load(folder).tokenizer.eos_token_ids) == {8, 258}


def test_an_end_of_the_text_of_a_model_that_sees_counts(copy):
    file = copy("random:qwen3-vl-shrunk") / "config.json"
    text = json.loads(file.read_text())["text_config"]
    edit_json(file, eos_token_id=..., text_config={**text, "eos_token_id": 7})
    assert 7 in load(file.parent).tokenizer.eos_token_ids


def test_the_default_model():
    checkpoint = load_checkpoint()
    assert checkpoint.name == "default" and checkpoint.path.name == "default"
    assert checkpoint.tokenizer.eos_token_ids
