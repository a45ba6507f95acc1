"""Models that read pictures too: their text is computed as that of the same model without them."""

import json

import mlx.core as mx
import pytest
from tests.helpers.checkpoints import arrays_of, complaint, differing, save_tensors, tensors_of

from tiny_llm_lab import load_checkpoint
from tiny_llm_lab.runtime.models.config.fields import read_json
from tiny_llm_lab.runtime.models.config.model_config import read_config
from tiny_llm_lab.runtime.models.config.picture_config import read_pictures

# As Qwen publishes them (transformers finds the sections in either place), and as MLX's conversions are.
ROPES = {"qwen3_vl": {"rope_type": "default", "mrope_interleaved": True}, "qwen2_5_vl": {"type": "mrope"}}
PREFIXES = {"model.": "model.language_model.", "lm_head.": "lm_head."}
MLX = {"model.": "language_model.model.", "lm_head.": "language_model.lm_head."}
VISION = {"model.visual.pos_embed.weight": (2, 3), "vision_tower.blocks.0.norm.bias": (2,)}


def with_pictures(folder, kind, is_nested, prefixes):
    path = folder / "config.json"
    text = json.loads(path.read_text())
    rope = {"mrope_section": [4, 6, 6], **ROPES.get(kind, ROPES["qwen3_vl"])}
    text = {**text, "rope_scaling": rope, "model_type": f"{kind}_text" if is_nested else kind}
    outer = {"model_type": kind, "vision_config": {"depth": 2}, "image_token_id": 7}
    path.write_text(json.dumps({**outer, "text_config": text} if is_nested else {**text, **outer}))
    tensors = {
        prefixes[prefix] + name.removeprefix(prefix): tensor
        for name, tensor in tensors_of(folder).items()
        for prefix in prefixes
        if name.startswith(prefix)
    }
    save_tensors(folder, tensors | {name: mx.ones(shape) for name, shape in VISION.items()})


PLAIN = [
    ("qwen3_vl", "random:qwen3-shrunk,tied=0"),
    ("qwen2_5_vl", "random:qwen2.5-shrunk"),
    ("qwen3_vl_moe", "random:qwen3-moe-shrunk"),
]


@pytest.mark.parametrize("prefixes", [PREFIXES, MLX], ids=["published", "mlx"])
@pytest.mark.parametrize("is_nested", [True, False])
@pytest.mark.parametrize(("kind", "plain"), PLAIN)
def test_the_text_model_is_that_of_the_plain_one(copy, kind, plain, is_nested, prefixes):
    folder = copy(plain)
    want, arrays = read_config(folder / "config.json"), arrays_of(folder)
    with_pictures(folder, kind, is_nested, prefixes)
    assert read_config(folder / "config.json") == want
    assert differing(folder, arrays) == []


def test_experts_are_normalised_where_the_file_says_nothing(copy):
    folder = copy("random:qwen3-moe-shrunk")
    with_pictures(folder, "qwen3_vl_moe", is_nested=False, prefixes=PREFIXES)
    content = json.loads((folder / "config.json").read_text())
    del content["norm_topk_prob"], content["rope_scaling"]
    assert read_config(folder / "config.json", content)[0].norm_topk_prob
    assert not read_config(folder / "config.json", {**content, "model_type": "qwen3_moe"})[0].norm_topk_prob


def test_a_rope_of_pictures_is_refused_where_the_type_has_none(copy):
    folder = copy("random:qwen3-shrunk")
    path = folder / "config.json"
    text = json.loads(path.read_text())
    path.write_text(json.dumps({**text, "rope_scaling": {"type": "mrope", "mrope_section": [4, 6, 6]}}))
    assert "rope_scaling of type 'mrope' is not supported" in complaint(folder)


def test_a_tower_is_the_same_in_mlxs_layout(copy):
    folder = copy("random:qwen3-vl-shrunk")
    want = load_checkpoint(str(folder), has_pictures=True)
    tensors = {
        name.replace("model.visual.", "vision_tower."): mx.moveaxis(w, 1, -1) if w.ndim == 5 else w
        for name, w in tensors_of(folder).items()
    }
    save_tensors(folder, tensors)
    found = load_checkpoint(str(folder), has_pictures=True)
    assert found.config == want.config and found.config.pictures is not None
    assert found.config.pictures.deep_layers[0] > 0, "not before any layer"
    content = read_json(folder / "config.json")
    content["model_type"] += "_moe"
    assert read_pictures(content, content.inner("text_config")) == want.config.pictures
    content["vision_config"]["deepstack_visual_indexes"] = []
    assert read_pictures(content, content.inner("text_config")).deep_layers == (), "none, not the default"
    assert differing(dict(found.weights), dict(want.weights)) == []


def test_experts_may_be_published_with_their_inputs_first(copy):
    folder = copy("random:qwen3.5-moe-shrunk")
    want = arrays_of(folder)
    turned = {
        name: mx.contiguous(w.swapaxes(1, 2)) if ".mlp.experts." in name else w
        for name, w in tensors_of(folder).items()
    }
    assert sum(".mlp.experts." in name for name in turned) == 10
    save_tensors(folder, turned)
    assert differing(folder, want) == []


OTHER_TOWERS = [
    {"hidden_act": "relu"},
    {"in_channels": 1},
    {"out_hidden_size": 63},
    {"num_heads": 5},
    {"num_position_embeddings": 65},
    {"deepstack_visual_indexes": [2, 1]},
    {"deepstack_visual_indexes": [1, 3]},
    {"depth": "3"},
]


@pytest.mark.parametrize("change", OTHER_TOWERS, ids=str)
def test_of_a_tower_that_we_cant_compute_the_text_is_served(copy, change):
    folder = copy("random:qwen3-vl-shrunk")
    path = folder / "config.json"
    content = json.loads(path.read_text())
    assert read_config(path)[0].pictures is not None
    path.write_text(json.dumps({**content, "vision_config": {**content["vision_config"], **change}}))
    checkpoint = load_checkpoint(str(folder), has_pictures=True)
    assert checkpoint.config.pictures is None and not any("visual" in name for name in checkpoint.weights)
