"""One hybrid, however its files name and lay out what it has: always the same weights."""

import json

import mlx.core as mx
import pytest
from tests.helpers.checkpoints import complaint, differing, edit_json, edit_tensors, save_tensors, tensors_of

from tiny_llm_lab import load_checkpoint
from tiny_llm_lab.types import QuantizedWeights

DENSE, EXPERTS, NEXT = "random:qwen3.5-shrunk", "random:qwen3.5-moe-shrunk", "random:qwen3-next-shrunk"
HYBRIDS = [DENSE, EXPERTS, NEXT]
NORMS = ("norm.weight", "norm_embedding.weight", "norm_hidden.weight")
CONV = "model.layers.0.linear_attn.conv1d.weight"
Tensors = dict[str, mx.array]


def renamed(rename):
    return lambda tensors: {rename(name): tensor for name, tensor in tensors.items()}


def as_transformers(name):
    return name.replace("model.", "model.language_model.", 1) if name.startswith("model.") else name


def as_mlx(name):
    return f"language_model.{name}"


def converted(tensors):
    """As MLX's conversions lay out what Hugging Face's have."""
    found = {}
    for name, tensor in tensors.items():
        if name.endswith("conv1d.weight"):
            tensor = tensor.transpose(0, 2, 1)
        elif name.endswith(NORMS) and "linear_attn" not in name:
            tensor = tensor + 1
        found[name] = tensor
    return found


def numbered(tensors):
    """With a matrix for each expert, as transformers 5 writes what it has fused."""
    found = {}
    for name, tensor in tensors.items():
        if name.endswith("experts.gate_up_proj"):
            module = name.removesuffix(".gate_up_proj")
            for i, (gate, up) in enumerate(zip(*mx.split(tensor, 2, axis=1), strict=True)):
                found |= {f"{module}.{i}.gate_proj.weight": gate, f"{module}.{i}.up_proj.weight": up}
        elif name.endswith("experts.down_proj"):
            found |= {
                f"{name.removesuffix('.down_proj')}.{i}.down_proj.weight": w for i, w in enumerate(tensor)
            }
        else:
            found[name] = tensor
    return found


def stacked(tensors):
    found = {}
    for name, tensor in tensors.items():
        if name.endswith("experts.gate_up_proj"):
            module = name.replace("experts.gate_up_proj", "switch_mlp")
            gate, up = mx.split(tensor, 2, axis=1)
            found |= {f"{module}.gate_proj.weight": gate, f"{module}.up_proj.weight": up}
        elif name.endswith("experts.down_proj"):
            found[name.replace("experts.down_proj", "switch_mlp.down_proj.weight")] = tensor
        else:
            found[name] = tensor
    return found


def unfused(tensors):
    """Qwen3-Next's inputs as Qwen3.5 has them: of 2 key heads with 2 value heads each, Dk 16 and Dv 24."""
    found = {}
    for name, tensor in tensors.items():
        module = name.removesuffix("qkvz.weight").removesuffix("ba.weight")
        if name.endswith("in_proj_qkvz.weight"):
            first, second = tensor[:128], tensor[128:]
            parts = [[head[:16], head[16:32], head[32:80], head[80:]] for head in (first, second)]
            q, k, v, z = (mx.concatenate([each[i] for each in parts]) for i in range(4))
            found |= {f"{module}qkv.weight": mx.concatenate([q, k, v]), f"{module}z.weight": z}
        elif name.endswith("in_proj_ba.weight"):
            found |= {f"{module}b.weight": tensor[mx.array([0, 1, 4, 5])]}
            found |= {f"{module}a.weight": tensor[mx.array([2, 3, 6, 7])]}
        else:
            found[name] = tensor
    return found


LAYOUTS = [renamed(as_transformers), renamed(as_mlx), converted]


@pytest.mark.parametrize("change", LAYOUTS, ids=["hf", "mlx", "1"])
@pytest.mark.parametrize("name", [*HYBRIDS, f"{DENSE},mtp=1", f"{EXPERTS},mtp=1"])
def test_other_names_and_other_layouts_are_the_same_weights(copy, name, change):
    folder = copy(name)
    save_tensors(folder, change(tensors_of(folder)))
    # 1 + weight in float32 is what the loader makes, and what a conversion stores.
    assert differing(folder, name) == []


@pytest.mark.parametrize("change", [numbered, stacked])
def test_experts_under_three_names(copy, change):
    folder = copy(EXPERTS)
    save_tensors(folder, change(tensors_of(folder)))
    assert differing(folder, EXPERTS) == []


def test_fused_experts_of_another_type(copy):
    """Qwen3-MoE, as transformers holds it in memory."""
    folder = copy("random:qwen3-moe-shrunk")
    tensors = tensors_of(folder)
    for layer in range(3):
        module = f"model.layers.{layer}.mlp.experts"
        gate, up, down = (
            mx.stack([tensors.pop(f"{module}.{i}.{part}_proj.weight") for i in range(8)])
            for part in ("gate", "up", "down")
        )
        fused = mx.concatenate([gate, up], axis=1)
        tensors |= {f"{module}.gate_up_proj": fused, f"{module}.down_proj": down}
    save_tensors(folder, tensors)
    assert differing(folder, "random:qwen3-moe-shrunk") == []


def test_inputs_of_a_delta_net_fused_or_not(copy):
    folder = copy(NEXT)
    save_tensors(folder, unfused(tensors_of(folder)))
    assert differing(folder, NEXT) == []


def test_packed_inputs_that_are_fused_stay_packed(copy):
    name = f"{NEXT},bits=4,group=32,value_dim=40"
    weights = load_checkpoint(name).weights
    w = weights["model.layers.0.linear_attn.in_proj_z.weight"]
    assert isinstance(w, QuantizedWeights) and w.weight.shape == (160, 64 * 4 // 32)
    folder = copy(name)
    tensors = tensors_of(folder)
    module = "model.layers.0.linear_attn.in_proj_qkvz"
    words, *factors = (tensors[f"{module}.{part}"] for part in ("weight", "scales", "biases"))
    whole = mx.dequantize(words, *(each.astype(mx.float32) for each in factors), group_size=32, bits=4)
    # Of each of two key heads: q and k of 16 numbers, v and z of two value heads of 40.
    z = mx.concatenate([whole[112:192], whole[304:384]])
    assert mx.array_equal(w.dequantized(), z)


@pytest.mark.parametrize("prefix", ["", "language_model."])
def test_a_router_and_a_gate_of_8_bits_in_a_model_of_4(copy, prefix):
    """As MLX's conversions have them; config.json names the modules as the files do."""
    folder = copy(f"{EXPERTS},bits=4,value_dim=40,group=32")
    tensors = tensors_of(folder)
    gates = ["model.layers.1.mlp.gate", "model.layers.1.mlp.shared_expert_gate"]
    for i, gate in enumerate(gates):
        drawn = mx.random.normal((8 if i == 0 else 1, 64), key=mx.random.key(i))
        parts = mx.quantize(drawn, group_size=64, bits=8)
        tensors |= {
            f"{gate}.{part}": w for part, w in zip(("weight", "scales", "biases"), parts, strict=True)
        }
    save_tensors(folder, {f"{prefix}{name}": tensor for name, tensor in tensors.items()})
    declared = json.loads((folder / "config.json").read_text())["quantization"]
    declared |= {f"{prefix}{gate}": {"group_size": 64, "bits": 8} for gate in gates}
    declared[f"{prefix}model.layers.0.linear_attn.in_proj_a"] = False  # and one that must be dense
    edit_json(folder / "config.json", quantization=declared, quantization_config=...)
    dense = "model.layers.0.linear_attn.in_proj_a"
    edit_tensors(folder, {f"{prefix}{dense}.{part}": None for part in ("scales", "biases")})
    edit_tensors(folder, {f"{prefix}{dense}.weight": mx.ones((4, 64))})
    weights = load_checkpoint(str(folder)).weights
    loaded = [weights[f"{gate}.weight"] for gate in gates]
    assert [w.bits for w in loaded if isinstance(w, QuantizedWeights)] == [8, 8]
    assert isinstance(weights[f"{dense}.weight"], mx.array)


def test_the_gates_of_a_state_stay_float32():
    weights = load_checkpoint(DENSE, dtype="bfloat16").weights
    dtypes = {name.rpartition(".")[2]: w.dtype for name, w in weights.items() if isinstance(w, mx.array)}
    assert dtypes == {"weight": mx.bfloat16, "A_log": mx.float32, "dt_bias": mx.float32}


def test_what_is_no_text_is_left_out_and_said_once(copy, capsys):
    folder = copy(DENSE)
    others = {
        "model.visual.patch_embed.proj.weight": 1,
        "vision_tower.blocks.0.norm.bias": 2,
        "mtp.fc.weight": 3,
    }
    edit_tensors(folder, {name: mx.ones((size,)) for name, size in others.items()})
    assert differing(folder, DENSE) == []
    assert capsys.readouterr().err == (
        f"{folder}: left out: 2 tensors of a vision tower, as only text is served; "
        "1 tensors of a draft layer (mtp) that is not whole, or not alone\n"
    )


def test_a_draft_layer_says_nothing_of_the_norms(copy):
    """Others take mtp.* for a sign of norms without their 1; here the shape of conv1d alone counts."""
    folder = copy(DENSE)
    save_tensors(folder, converted(tensors_of(folder)) | {"mtp.norm.weight": mx.zeros((64,))})
    assert differing(folder, DENSE) == []


def test_a_parameter_that_is_there_twice(copy):
    folder = copy(DENSE)
    edit_tensors(folder, {f"language_model.{CONV}": tensors_of(folder)[CONV]})
    assert "are the same parameter: remove the file that is not the model's" in complaint(folder)


Q_PROJ = "model.layers.{}.self_attn.q_proj.weight"
MISFITS = [
    ({CONV: None}, f"tensor {CONV} is missing: fetch the whole checkpoint again"),
    ({CONV: mx.ones((160, 4))}, f"tensor {CONV} is F32 [160, 4], not F32 or F16 or BF16 [160, 1, 4]"),
    ({CONV: mx.ones((160, 4, 1))}, f"tensor {CONV} is F32 [160, 4, 1], not F32 or F16 or BF16 [160, 1, 4]"),
    (
        {Q_PROJ.format(1): mx.ones((128, 64))},
        "q_proj.weight is F32 [128, 64], not F32 or F16 or BF16 [256, 64]",
    ),
    ({Q_PROJ.format(0): mx.ones((256, 64))}, "is not in the qwen3_5 model of config.json"),
]


@pytest.mark.parametrize(("changes", "said"), MISFITS)
def test_weights_that_do_not_fit(copy, changes, said):
    folder = copy(DENSE)
    edit_tensors(folder, changes)
    assert said in complaint(folder)


@pytest.mark.parametrize("shape", [(), (4,), (4, 4), (8, 4, 4, 4)])
@pytest.mark.parametrize("part", ["gate_up_proj", "down_proj"])
def test_fused_experts_of_another_number_of_axes(copy, part, shape):
    folder, name = copy(EXPERTS), f"model.layers.0.mlp.experts.{part}"
    edit_tensors(folder, {name: mx.ones(shape)})
    assert f"tensor {name} is F32 {list(shape)}, not" in complaint(folder)
