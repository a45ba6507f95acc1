"""Every number of every `config.json` replaced by an extreme one: a line that names it, or it is read."""

import contextlib
import copy as copying
import json

import mlx.core as mx
import pytest

from tiny_llm_lab.runtime.console.talk import shortened
from tiny_llm_lab.runtime.models.config.model_config import read_config
from tiny_llm_lab.runtime.models.random.random_checkpoint import find_or_make
from tiny_llm_lab.runtime.models.recommended import recommended_sampling
from tiny_llm_lab.types import SamplingParams, UserError

YARN = {
    "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128, "beta_fast": 32.0,
    "beta_slow": 1.0, "attention_factor": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0,
}  # fmt: skip
SLIDING = {"use_sliding_window": True, "sliding_window": 512, "max_window_layers": 3}
CHUNKS = {"dual_chunk_attention_config": {"chunk_size": 64, "local_size": 8}}
NUMBERED = {"original_max_position_embeddings": 128, "num_local_experts": 8, "mlp_only_layers": [1]}
CONFIGS = {
    "random:qwen3-shrunk": {"rope_scaling": YARN, **SLIDING, **CHUNKS},
    "random:qwen2.5-shrunk": {"rope_scaling": {"type": "linear", "factor": 2.0}},
    "random:qwen3-moe-shrunk": {**NUMBERED, "quantization": {"bits": 4, "group_size": 64}},
    "random:qwen3.5-shrunk": {"quantization_config": {"quant_method": "fp8", "weight_block_size": [8, 8]}},
    "random:qwen3.5-moe-shrunk": {"rope_scaling": YARN | {"rope_theta": 1e7}},
    "random:qwen3-next-shrunk": {"mlp_only_layers": [2]},
}
VALUES = [
    "9" * 400, "-" + "9" * 400, "1e308", "1e400", "0", "-1", "1", "NaN", "5e-324", "1.0000000000000002",
    "true", '"4"', "null",
]  # fmt: skip


def places(value, place=()):
    """Where in a JSON value numbers are."""
    if isinstance(value, dict | list):
        for key, each in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places(each, (*place, key))
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield place


def replaced(value, place):
    """`value` with "HERE" at `place`."""
    changed = inner = copying.deepcopy(value)
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = "HERE"
    return changed


def outcome(folder, place):
    """Whether config.json is read or refused; fails if it is neither, or if the line is long or vague."""
    try:
        config, _ = read_config(folder / "config.json")
    except UserError as error:
        line = shortened(str(error).removeprefix(f"{folder}/config.json: "))
        assert "\n" not in line and len(line) < 260, (place, line)
        return "refused"
    assert max(config.num_hidden_layers, config.num_experts) <= 10_000, place
    if config.rope_scaling is not None:
        pairs = mx.exp(-mx.arange(16) / 16 * mx.log(mx.array(config.rope_theta)))
        assert mx.all(mx.isfinite(config.rope_scaling.scaled(pairs, config.rope_theta))).item(), place
    return "read"


@pytest.mark.parametrize("name", CONFIGS)
def test_extreme_numbers_are_refused_or_computed(copy, name):
    folder = copy(name, **CONFIGS[name])
    whole = json.loads((folder / "config.json").read_text())
    seen = {"read": 0, "refused": 0}
    assert outcome(folder, ()) == "read"
    for place in places(whole):
        for value in VALUES:
            text = json.dumps(replaced(whole, place)).replace('"HERE"', value)
            (folder / "config.json").write_text(text)
            seen[outcome(folder, (*place, value[:20]))] += 1
    assert seen["refused"] > 100 and seen["read"] > 20, seen


@pytest.mark.parametrize("field", ["temperature", "top_p", "top_k", "min_p", "repetition_penalty"])
def test_extreme_numbers_of_a_recommended_sampling(copy, field):
    folder = copy("random:qwen3-shrunk")
    for value in VALUES:
        (folder / "generation_config.json").write_text(f'{{"{field}": {value}}}')
        with contextlib.suppress(UserError):  # whatever else it raises is a traceback
            SamplingParams(**recommended_sampling(folder))


RECOMMENDED = [
    ({}, {}),
    ({"temperature": 0.6, "top_k": 20, "max_length": 9}, {"temperature": 0.6, "top_k": 20}),
    ({"do_sample": None, "min_p": 0.1}, {"min_p": 0.1}),
    ({"do_sample": True, "temperature": 0.6, "top_p": None}, {"temperature": 0.6}),
    ({"do_sample": False, "temperature": 0.6, "top_p": 0.9}, {"temperature": 0.0, "top_p": 0.9}),
]


@pytest.mark.parametrize(("declared", "drawn"), RECOMMENDED)
def test_what_a_checkpoint_recommends(tmp_path, declared, drawn):
    assert recommended_sampling(tmp_path) == {}
    (tmp_path / "generation_config.json").write_text(json.dumps(declared))
    assert recommended_sampling(tmp_path) == drawn


TOO_LARGE = [
    ("qwen3-shrunk,vocab=99999999999999999999", "vocab must be at most 1048576"),
    ("qwen3-shrunk,vocab=" + "9" * 5000, "vocab must be at most 1048576"),
    ("qwen3-shrunk,vocab=٣٣٣", "is not OPTION=NUMBER"),
    *((f"qwen3-shrunk,{key}=9999999999", f"{key} must be at most") for key in ("hidden", "inner", "group")),
    ("qwen3-shrunk,layers=1000000", "layers must be at most 1000"),
    ("qwen3-moe-shrunk,experts=1000000", "experts must be at most 1024"),
    ("qwen3-shrunk,positions=9999999999", "positions must be at most"),
    ("qwen3-shrunk,seed=99999999999999999999", "seed must be at most"),
    ("qwen3-shrunk,hidden=131072,inner=131072,layers=1000", "choose smaller sizes, or set TINY_LLM_CACHE"),
    ("qwen3.5-shrunk,interval=9", "interval must be at most layers: one must have attention"),
    ("qwen3.5-moe-shrunk,norm_topk=0", "norm_topk must be 1 in qwen3_5_moe"),
]


@pytest.mark.parametrize(("shape", "said"), TOO_LARGE)
def test_sizes_of_random_models_are_refused_before_they_cost(shape, said, monkeypatch):
    def fail(*_):
        pytest.fail("a tokenizer of that size is written")

    monkeypatch.setattr("tiny_llm_lab.runtime.models.random.random_checkpoint.write_byte_tokenizer", fail)
    with pytest.raises(UserError, match=said) as caught:
        find_or_make(shape)
    assert len(str(caught.value)) < 700
