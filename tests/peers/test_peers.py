"""The other engines of `bench --baselines`, for real: run by naming this folder where they are installed."""

import pytest

from benchmarks.peers.gguf_file import find_or_make
from benchmarks.peers.registry import PEERS
from tiny_llm_lab.measure.bench.sample import measure
from tiny_llm_lab.measure.bench.spec import Schedule, Spec, at_once
from tiny_llm_lab.measure.bench.throughput.command import baseline_specs, rates_of
from tiny_llm_lab.runtime.models.config.model_config import read_config
from tiny_llm_lab.runtime.models.registry import find_folder
from tiny_llm_lab.runtime.models.weights.layout import parameter_shapes

SPEC = Spec("random:qwen3-shrunk,bits=4", "ref", "cpu", None, Schedule(16), 2, at_once(2, 16, 16), threads=1)


@pytest.mark.parametrize("name", list(PEERS))
def test_a_peer_runs(name):
    assert PEERS[name].missing() is None, f"{name} is not installed: see CONTRIBUTING.md"
    for spec in baseline_specs(name, PEERS[name], SPEC, 8, 8):
        rates = rates_of(measure(spec, PEERS))
        assert rates.prefill_tok_s > 0 and rates.decode_tok_s > 0


@pytest.mark.parametrize("name", ["qwen3-shrunk", "qwen2.5-shrunk"])
@pytest.mark.parametrize("quantization", ["Q4_0", "Q8_0", "BF16"])
def test_a_gguf_file_has_every_parameter(name, quantization, tmp_path, monkeypatch):
    gguf = pytest.importorskip("gguf")
    monkeypatch.setenv("TINY_LLM_CACHE", str(tmp_path))
    config, _ = read_config(find_folder(f"random:{name}") / "config.json")
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(find_or_make(config, quantization)).tensors}
    assert len(tensors) == len(list(parameter_shapes(config)))
    assert {"token_embd.weight", "blk.1.attn_q.weight", "blk.0.ffn_norm.weight"} <= set(tensors)
    assert ("blk.0.attn_q.bias" in tensors) == config.qkv_bias
    assert tensors["blk.0.attn_q.weight"].tensor_type.name == quantization
