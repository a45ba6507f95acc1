"""The other engines of `bench --baselines`, for real: run by naming this folder where they are installed."""

import pytest

from tiny_llm_lab.bench.peers import PEERS
from tiny_llm_lab.bench.sample import Schedule, Spec
from tiny_llm_lab.bench.throughput.targets import at_once, baseline_targets
from tiny_llm_lab.models.config import read_config
from tiny_llm_lab.models.registry import find_folder

SPEC = Spec("random:qwen3-shrunk,bits=4", "ref", "cpu", None, Schedule(16), 2, at_once(2, 16, 16))


@pytest.mark.parametrize("name", list(PEERS))
def test_a_peer_runs(name: str) -> None:
    config, _ = read_config(find_folder("random:qwen3-shrunk") / "config.json")
    assert PEERS[name].missing() is None, f"{name} is not installed: see CONTRIBUTING.md"
    for peer in baseline_targets(name, SPEC, config, 1, 8, 8):
        peer.prepare_files()
        peer.run(0)
        assert peer.samples[0]["prefill_tok_s"] > 0 and peer.samples[0]["decode_tok_s"] > 0
