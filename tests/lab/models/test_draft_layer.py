"""A draft layer in a folder of its own is the one in the checkpoint, however its files name what it has."""

import json

import mlx.core as mx
import pytest
from tests.helpers.checkpoints import differing, edit_json, edit_tensors, save_tensors, tensors_of
from tests.helpers.devices import on_cpu
from tests.lab.models.test_hybrid_layouts import converted, stacked

from tiny_llm_lab import LLM, load_checkpoint, load_solution
from tiny_llm_lab.cli import dispatch as cli
from tiny_llm_lab.measure.fit.models import weights_bytes
from tiny_llm_lab.runtime.models.registry import find_folder
from tiny_llm_lab.serving.async_engine.loop import built_from
from tiny_llm_lab.serving.options.engine_settings import EngineSettings, ModelSettings
from tiny_llm_lab.types import QuantizedWeights, SamplingParams, SchedulerConfig

DENSE, PACKED = "random:qwen3.5-shrunk", "random:qwen3-next-shrunk,bits=4,group=32,value_dim=40"
NAMES = [DENSE, f"{DENSE},bits=16", "random:qwen3.5-moe-shrunk", "random:qwen3-next-shrunk", PACKED]


def arrays(name, draft_layer=None):
    found: dict[str, mx.array] = {}
    dtype = "bfloat16" if "bits=16" in name else "float32"
    for weight, w in load_checkpoint(name, dtype=dtype, draft_layer=draft_layer).weights.items():
        parts = vars(w) if isinstance(w, QuantizedWeights) else {"dense": w}
        found |= {f"{weight} {part}": each for part, each in parts.items() if isinstance(each, mx.array)}
    return found


@pytest.mark.parametrize("name", NAMES)
def test_the_weights_are_those_inside_of_a_checkpoint(name):
    assert differing(arrays(name, f"{name},mtp=2"), arrays(f"{name},mtp=1")) == []
    assert any(each.startswith("mtp.") for each in arrays(name, f"{name},mtp=2"))


@pytest.mark.parametrize("prefix", ["", "mtp.", "language_model.mtp."])
@pytest.mark.parametrize("name", NAMES[:3])
def test_as_mlx_converts_it(name, prefix, copy):
    """Names with and without mtp., experts in a stack, and norms that have their 1."""
    folder = copy(f"{name},mtp=2")
    tensors = stacked(converted(tensors_of(folder)))
    save_tensors(folder, {prefix + each.removeprefix("mtp."): tensor for each, tensor in tensors.items()})
    assert differing(arrays(name, str(folder)), arrays(f"{name},mtp=1")) == []


def test_another_type_and_no_inner_configuration(copy):
    folder = copy(f"{DENSE},mtp=2")
    text = json.loads((folder / "config.json").read_text())["text_config"]
    edit_json(folder / "config.json", **text | {"model_type": "qwen3_5_moe_mtp", "text_config": ...})
    assert differing(arrays(DENSE, str(folder)), arrays(f"{DENSE},mtp=1")) == []


@pytest.mark.parametrize("name", [DENSE, PACKED, "random:qwen3.5-vl-shrunk"])
def test_answers_and_drafts_are_those_of_the_layer_inside(name):
    base = name.replace("-vl", "")
    layer = f"mtp:{base},mtp=2"
    models = (
        {"off": name, "mtp": f"{base},mtp=1", layer: name} if base == name else {"off": name, layer: name}
    )
    config, sampling = SchedulerConfig(max_model_len=96), SamplingParams(max_tokens=24, ignore_eos=True)
    answers, drafted = [], []
    for how, model in models.items():
        with LLM(model, config=config, speculate=how, draft_gate=False) as llm:
            answers.append(
                [each.token_ids for each in llm.generate([[5, 6, 7, 8, 9] * 8, [3] * 20], sampling)]
            )
            stats = llm.engine.core.spec_stats
            drafted += [vars(stats)] if stats else []
    assert answers[1:] == answers[:1] * (len(models) - 1)
    assert drafted[1:] == drafted[:1] * (len(models) - 2) and drafted[0]["num_draft_tokens"] > 20


@pytest.mark.parametrize("packing", ["bits=16", "bits=4", "bits=3", "bits=6"])
def test_a_layer_in_any_packing_changes_no_bit(packing):
    """Also where the C++ kernels read the model's packing and not the layer's."""
    name, own = f"{DENSE},value_dim=32,group=32", "bits=8"
    with on_cpu("cpp"):
        models = [build(f"{name},{own}", layer) for layer in (None, f"{name},{packing},mtp=2")]
        logits = [model(mx.array([[5, 6, 7, 8, 9] * 8])) for model in models]
    assert mx.array_equal(*logits)


def build(name, draft_layer):
    return load_solution("ref").build_model(load_checkpoint(name, draft_layer=draft_layer))


@pytest.mark.parametrize("name", ["norm.weight", "layers.1.mlp.up_proj.weight", "embed_tokens.weight"])
def test_a_part_too_many_or_too_few(name, copy):
    folder = copy(f"{DENSE},mtp=2")
    edit_tensors(folder, {f"mtp.{name}": None if name == "norm.weight" else mx.ones((2, 2))})
    with pytest.raises(Exception, match=rf"tensor mtp\.{name} is (missing|not in the qwen3_5 model)"):
        load_checkpoint(DENSE, draft_layer=str(folder))


def test_fit_counts_it(capsys):
    """Of a name and of its folder; the layer's file is what it says."""
    layer = "random:qwen3.5-9b,bits=4,mtp=2,layers=4,vocab=400"
    found = {}
    for name, how in (("layer", f"mtp:{layer}"), ("own", "mtp")):
        cli.main(["fit", "--json", "--memory", "32G", "random:qwen3.5-9b,bits=4,mtp=0", "--speculate", how])
        found[name] = json.loads(capsys.readouterr().out)["models"][0]["plan"]
    assert found["layer"]["weights"] - found["own"]["weights"] == weights_bytes(layer)
    built = (
        built_from(ModelSettings(DENSE, engine=EngineSettings(speculate=how)), print)
        for how in ("off", f"mtp:{DENSE},mtp=2")
    )
    without, with_it = (each.facts.block_bytes for each in built)  # as the line at the start says them
    assert 2 * with_it == 3 * without and found["layer"]["block_bytes"] == found["own"]["block_bytes"]
    small = f"{DENSE},mtp=2"
    assert 0 <= weights_bytes(str(find_folder(small))) - weights_bytes(small) < 4000
