"""The sizes of `random:` models at both sides of each limit, their sampling, and keys that say nothing."""

from pathlib import Path

import pytest

from tiny_llm_lab.runtime.models.config.fields import Fields
from tiny_llm_lab.runtime.models.config.model_config import text_content
from tiny_llm_lab.runtime.models.random.config_json import sampling_json
from tiny_llm_lab.runtime.models.random.shapes import parse_shape
from tiny_llm_lab.types import UserError

SIZES = [
    ("qwen3-moe-shrunk,experts=4,active=4", "qwen3-moe-shrunk,experts=4,active=5"),
    ("qwen3-moe-shrunk,active=1", "qwen3-moe-shrunk,active=0"),
    ("qwen3-moe-shrunk,sparse_step=1", "qwen3-moe-shrunk,sparse_step=0"),
    ("qwen3-shrunk,layers=1", "qwen3-shrunk,layers=0"),
    ("qwen3-shrunk,heads=4,kv_heads=4", "qwen3-shrunk,heads=4,kv_heads=8"),
    ("qwen3.5-shrunk,layers=3,interval=3", "qwen3.5-shrunk,layers=3,interval=4"),
    ("qwen3.5-shrunk,head_dim=64,rotary=64", "qwen3.5-shrunk,head_dim=64,rotary=66"),
]


@pytest.mark.parametrize(("taken", "refused"), SIZES)
def test_sizes_at_their_limits(taken, refused):
    parse_shape(taken)
    with pytest.raises(UserError):
        parse_shape(refused)


CARDS = [
    ("qwen2.5-7b", 0.7, 0.8),
    ("qwen3-next-80b-a3b", 0.7, 0.8),
    ("qwen3-0.6b", 0.6, 0.95),
    ("qwen3.5-4b", 1.0, 0.95),
]


@pytest.mark.parametrize(("name", "temperature", "top_p"), CARDS)
def test_what_its_model_card_recommends(name, temperature, top_p):
    drawn = sampling_json(parse_shape(name))
    assert (drawn["temperature"], drawn["top_p"]) == (temperature, top_p)


@pytest.mark.parametrize("key", ["hidden_size", "tie_word_embeddings", "rope_parameters"])
def test_a_null_of_a_text_config_leaves_what_stands_beside_it(key):
    content = {"model_type": "qwen3_5", key: 7, "text_config": {"model_type": "qwen3_5_text", key: None}}
    assert text_content(Fields(Path("config.json"), content))[key] == 7
    assert text_content(Fields(Path("config.json"), {**content, "text_config": {key: 8}}))[key] == 8
