"""`bench --baselines openvino`: a program in another python, its JSON, and what it may get wrong."""

import json
import math
import sys

import pytest
from tests.helpers import fake_openvino
from transformers import AutoConfig

from benchmarks.peers.registry import OPENVINO, PEERS, openvino_formats
from benchmarks.peers.torch_cpu import model_fields, text_model
from tiny_llm_lab.measure.bench.peer import run_peer
from tiny_llm_lab.measure.bench.spec import Spec, at_once
from tiny_llm_lab.measure.bench.throughput.command import rates_of
from tiny_llm_lab.runtime.models.config.model_config import read_config
from tiny_llm_lab.runtime.models.random.config_json import config_json
from tiny_llm_lab.runtime.models.random.shapes import SHAPES
from tiny_llm_lab.types import UserError

FAKE = f'exec "{sys.executable}" "{fake_openvino.__file__}" "$@"'


@pytest.fixture
def python(tmp_path, monkeypatch):
    """Makes the python of the variable a shell script."""
    monkeypatch.setenv("TINY_LLM_CACHE", str(tmp_path / "cache"))

    def become(script):
        path = tmp_path / "python"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        monkeypatch.setenv(OPENVINO.variable, str(path))
        return path

    return become


def answering(**wrong):
    """A python whose answer is right but for these."""
    right = {"took_s": 2.0, "prefill_s": [1.0], "steps_s": [0.2] * 5, "version": "1"}
    return f"echo '{json.dumps(right | wrong)}'"


def run(variant="int4", streams=1, prompt_len=16, max_tokens=6):
    requests = at_once(streams, prompt_len, max_tokens)
    return run_peer(
        Spec("random:qwen3-shrunk", "", requests=requests, threads=2, variant=variant), OPENVINO.measure
    )


@pytest.mark.parametrize(("streams", "prompt_len", "max_tokens"), [(1, 16, 8), (3, 200, 9), (8, 5, 20)])
def test_rates_are_of_all_streams(python, streams, prompt_len, max_tokens):
    python(FAKE)
    for variant, slower in (("int4", 1), ("int4 bfloat16", 2)):
        rates = rates_of(run(variant, streams, prompt_len, max_tokens))
        assert rates.prefill_tok_s == pytest.approx(2 / slower / fake_openvino.TOKEN_S), "by two threads"
        assert rates.decode_tok_s == pytest.approx(1 / fake_openvino.STEP_S)
        assert rates.decode_step_s == pytest.approx(streams * fake_openvino.STEP_S)


def test_every_kind_of_weights_has_a_model(python, tmp_path):
    python(FAKE)
    runs = [run(variant) for variant in ("int4", "int4 bfloat16", "int8", "bf16")]
    made = {path.parent.name.split("-")[-1]: path for path in tmp_path.glob("cache/openvino/*/*/said")}
    assert set(made) == {"int4", "int8", "bf16"}
    said = {weights: path.read_text() for weights, path in made.items()}
    assert "'group_size': 64" in said["int4"] and "'bits': 8" in said["int8"]
    assert all("'model_type': 'qwen3'" in each and "bfloat16" in each for each in said.values())
    assert "quantization_config" not in said["bf16"] and "'load_in_8bit': False" in said["bf16"]
    assert {each.weights_bytes for each in runs} == {runs[0].weights_bytes}
    assert 0.9 * fake_openvino.BIN_BYTES < runs[0].weights_bytes <= fake_openvino.BIN_BYTES, "less the norms"
    assert runs[0].facts == {"version": "2026.4"}


WRONG = [
    ("echo log >&2; echo no module optimum >&2; exit 3", "ended with 3: no module optimum (CONTRIBUTING"),
    ("kill -9 $$", "ended with -9: it says nothing"),
    ("echo hello", "answers no JSON"),
    ("echo '[]'", "answers without its times"),
    (answering(steps_s=["x"]), "answers without its times"),
    (answering(steps_s=[0.25] * 4), "4 steps in 2.000 s where it computed 5"),
    (answering(prefill_s=[math.nan]), "5 steps in nan s"),
    (answering(steps_s=[0.025] * 5), "5 steps in 1.125 s where it computed 5 in 2.000 s"),
]


@pytest.mark.parametrize(("script", "said"), WRONG)
def test_a_wrong_answer_is_one_line(python, script, said):
    python(FAKE)
    run()
    python(answering())
    assert run().total_s == pytest.approx(2.0), "no model is made again"
    python(script)
    with pytest.raises(UserError) as error:
        run()
    assert said in str(error.value) and "\n" not in str(error.value)


def test_what_was_not_made_leaves_nothing(python, tmp_path):
    path = python("exit 1")
    with pytest.raises(UserError, match="ended with 1"):
        run()
    path.unlink()
    with pytest.raises(UserError, match=rf"cannot run .*: set {OPENVINO.variable} again"):
        run()
    assert not list(tmp_path.glob("cache/openvino/*/*"))


def test_it_needs_its_variable(monkeypatch):
    monkeypatch.delenv(OPENVINO.variable, raising=False)
    said = PEERS["openvino"].missing()
    assert said and said.startswith(f"{OPENVINO.variable} is not set: give it a python") and "genai" in said
    monkeypatch.setenv(OPENVINO.variable, "/somewhere/python")
    assert PEERS["openvino"].missing() is None


def test_its_weights_have_as_many_bits_as_the_model():
    wanted = {4: ("int4", "int4 bfloat16"), 8: ("int8", "int8 bfloat16"), 16: ("bf16",)}
    assert {bits: openvino_formats(bits) for bits in wanted} == wanted


# Tests of the sizes that PyTorch's baseline gets: transformers takes unknown names in silence


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
    implied["head_dim"] = (
        heads if config.model_type.startswith("qwen2") else config.head_dim
    )  # asked with getattr
    if all(map(config.has_experts, range(config.num_hidden_layers))):
        implied["intermediate_size"] = config.intermediate_size  # of dense layers, and there are none
    unknown = fields.keys() - settings(text_model(config)).keys()
    assert {field: fields[field] for field in unknown} == {field: implied[field] for field in unknown}
