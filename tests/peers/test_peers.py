"""The other engines of `bench --baselines`, for real: run by naming this folder where they are installed."""

from dataclasses import replace

import pytest

from benchmarks.peers.gguf_file import find_or_make
from benchmarks.peers.registry import PEERS
from tiny_llm_lab.measure.bench.sample import measure
from tiny_llm_lab.measure.bench.spec import Schedule, Spec, at_once
from tiny_llm_lab.measure.bench.throughput.command import baseline_specs, rates_of
from tiny_llm_lab.runtime.models.config.model_config import read_config
from tiny_llm_lab.runtime.models.registry import find_folder
from tiny_llm_lab.runtime.models.weights.layout import parameter_shapes
from tiny_llm_lab.types import UserError

SPEC = Spec("random:qwen3-shrunk,bits=4", "ref", "cpu", None, Schedule(16), 2, at_once(2, 16, 16), threads=1)


@pytest.mark.parametrize("name", list(PEERS))
def test_a_peer_runs(name):
    assert PEERS[name].missing() is None, f"{name} is not installed: see CONTRIBUTING.md"
    ours = replace(SPEC, batch_size=1 if name in ("mnn", "ik_llama.cpp") else 2)  # with fa
    for spec in baseline_specs(name, PEERS[name], ours, 8, 8):
        rates = rates_of(measure(spec, PEERS))
        assert rates.prefill_tok_s > 0 and rates.decode_tok_s > 0


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("qwen3-shrunk", {"blk.1.attn_q.weight": "packed", "blk.0.ffn_norm.weight": "F32"}),
        ("qwen2.5-shrunk", {"blk.0.attn_q.weight": "packed", "blk.0.attn_q.bias": "F32"}),
        ("qwen3-moe-shrunk", {"blk.0.ffn_gate_exps.weight": "packed", "blk.0.ffn_gate_inp.weight": "F32"}),
        ("qwen3.5-shrunk", {"blk.0.attn_qkv.weight": "packed", "blk.0.ssm_conv1d.weight": "F32"}),
        ("qwen3.5-moe-shrunk", {"blk.0.ssm_a": "F32", "blk.0.ffn_gate_inp_shexp.weight": "F32"}),
    ],
)
@pytest.mark.parametrize("quantization", ["Q4_0", "Q8_0", "BF16"])
def test_a_gguf_file_has_every_parameter(name, first, quantization, tmp_path, monkeypatch):
    gguf = pytest.importorskip("gguf")
    monkeypatch.setenv("TINY_LLM_CACHE", str(tmp_path))
    config, _ = read_config(find_folder(f"random:{name}") / "config.json")
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(find_or_make(config, quantization)).tensors}
    assert len(tensors) == len(list(parameter_shapes(config)))
    for name, kind in first.items():
        assert tensors[name].tensor_type.name == kind.replace("packed", quantization)


def test_what_gguf_has_no_name_for_is_refused(tmp_path, monkeypatch):
    pytest.importorskip("gguf")
    monkeypatch.setenv("TINY_LLM_CACHE", str(tmp_path))
    config, _ = read_config(find_folder("random:qwen3-next-shrunk") / "config.json")
    with pytest.raises(UserError, match=r"qwen3next has no model\.layers\.0\.linear_attn\.in_proj_"):
        find_or_make(config, "Q4_0")
