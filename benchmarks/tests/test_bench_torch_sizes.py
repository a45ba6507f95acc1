"""Tests of the sizes that PyTorch's baseline gets: transformers takes unknown names in silence."""

import json

import pytest
from transformers import AutoConfig

from benchmarks.peers.torch_cpu import model_fields, text_model
from tiny_llm_lab.runtime.models.config.model_config import read_config
from tiny_llm_lab.runtime.models.random.config_json import config_json
from tiny_llm_lab.runtime.models.random.shapes import SHAPES


def settings(kind, **fields):
    made = AutoConfig.for_model(kind, **fields)
    names = {name: getattr(made, known) for name, known in made.attribute_map.items()}
    return vars(made) | made.rope_parameters | names


@pytest.mark.parametrize("name", SHAPES)
def test_every_size_reaches_transformers(name, tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config_json(SHAPES[name])))
    config, _ = read_config(path)
    fields = model_fields(config)
    made = settings(text_model(config), **fields)
    assert {field: made[field] for field in fields} == fields
    # What a type has no name for must say what the type does anyway.
    implied = {"decoder_sparse_step": 1, "mlp_only_layers": [], "norm_topk_prob": True}
    implied |= {"shared_expert_intermediate_size": 0, "partial_rotary_factor": 0.25}
    heads = config.hidden_size // config.num_attention_heads
    implied["head_dim"] = heads if config.model_type == "qwen2" else config.head_dim  # asked with getattr
    if all(map(config.has_experts, range(config.num_hidden_layers))):
        implied["intermediate_size"] = config.intermediate_size  # of dense layers, and there are none
    unknown = fields.keys() - settings(text_model(config)).keys()
    assert {field: fields[field] for field in unknown} == {field: implied[field] for field in unknown}
