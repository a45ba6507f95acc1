"""The other engines of `bench --baselines`, for real: run by naming this folder where they are installed."""

from dataclasses import replace

import pytest

from tiny_llm_lab.bench.contenders import peer_contenders
from tiny_llm_lab.bench.engine_sample import EngineSpec
from tiny_llm_lab.bench.peers import PEERS
from tiny_llm_lab.models.config import read_config
from tiny_llm_lab.models.registry import find_folder

SPEC = EngineSpec("random:qwen3-shrunk,bits=4", "ref", "cpu", None, 16, 16, 2, 16)


@pytest.mark.parametrize("name", list(PEERS))
def test_a_peer_runs(name: str) -> None:
    config, _ = read_config(find_folder("random:qwen3-shrunk") / "config.json")
    assert PEERS[name].missing() is None, f"{name} is not installed: see CONTRIBUTING.md"
    for peer in peer_contenders(name, replace(SPEC, batch=2), config, 1, 8, 8):
        peer.prepare_files()
        peer.run(0)
        assert peer.samples[0]["prefill_tok_s"] > 0 and peer.samples[0]["decode_tok_s"] > 0
