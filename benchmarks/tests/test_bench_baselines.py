"""`bench --baselines` with other engines: which variants run, in turns, and what is left out."""

import json
from dataclasses import replace

import pytest
from tests.helpers.throughput import Children, bench

from benchmarks import bench as bench_of_clone
from benchmarks.commands import COMMANDS
from benchmarks.peers.registry import PEERS
from tiny_llm_lab.measure.bench.peer import Peer
from tiny_llm_lab.measure.bench.throughput import command
from tiny_llm_lab.runtime.console.talk import CrashError

Capture = pytest.CaptureFixture[str]


def installed(monkeypatch, is_there):
    peers = dict[str, Peer]()
    for name, peer in PEERS.items():
        module = "json" if is_there else "no_such_module"
        peers[name] = replace(peer, requires=(module,))
    monkeypatch.setattr(bench_of_clone, "PEERS", peers)


def test_a_missing_baseline_is_one_line(monkeypatch, capsys):
    installed(monkeypatch, False)
    assert bench(monkeypatch, Children(), "--baselines", "torch", "--json", catalogue=COMMANDS) == 0
    captured = capsys.readouterr()
    (line,) = [line for line in captured.err.splitlines() if "torch" in line]
    assert "not installed: run pip install" in line
    result = json.loads(captured.out)
    assert "not installed" in result["skipped"]["torch"] and result["peers"] == {}


def test_engines_take_turns(monkeypatch, capsys):
    installed(monkeypatch, True)
    children = Children()
    assert bench(monkeypatch, children, "--baselines", "torch,mlx-lm", catalogue=COMMANDS) == 0
    turns = [spec.variant or spec.solution for spec in children.asked]
    order = ["ref", "bfloat16", "float32", "mlx-lm"]
    assert turns == order + order[::-1], "forwards, then backwards"
    assert [spec.seed for spec in children.asked] == [0] * 4 + [1] * 4
    lengths = {spec.solution: spec.requests[0].max_tokens for spec in children.asked}
    slow = command.SLOW_OUTPUT_LEN
    assert lengths == {"ref": 32, "torch": 32, "mlx-lm": slow}, "mlx-lm is slow on a CPU"
    captured = capsys.readouterr()
    assert f"answers of {command.SLOW_OUTPUT_LEN} tokens, unlike our own run" in captured.err
    assert "torch bfloat16" in captured.out and "1.00x" in captured.out


@pytest.mark.parametrize(
    ("bits", "formats"), [("4", ["Q4_0", "BF16"]), ("8", ["Q8_0", "BF16"]), ("16", ["BF16"])]
)
def test_llama_cpp_has_as_many_bits_as_the_model(monkeypatch, bits, formats):
    installed(monkeypatch, True)
    children = Children()
    assert (
        bench(
            monkeypatch,
            children,
            "--bits",
            bits,
            "--repeats",
            "1",
            "--baselines",
            "llama.cpp",
            catalogue=COMMANDS,
        )
        == 0
    )
    variants = [spec.variant for spec in children.asked if spec.solution == "llama.cpp"]
    assert variants == [variant for each in formats for variant in (f"{each} fa", each)]


def test_a_peer_that_fails_is_left_out(monkeypatch, capsys):
    installed(monkeypatch, True)
    children = Children({"float32": CrashError("Traceback\nMemoryError: too big")})
    assert bench(monkeypatch, children, "--baselines", "torch", "--json", catalogue=COMMANDS) == 0
    captured = capsys.readouterr()
    assert "torch float32 is left out: MemoryError: too big" in captured.err
    result = json.loads(captured.out)
    assert [row["name"] for row in result["sections"][0]["rows"]] == ["ref", "torch bfloat16"]
    assert result["peers"]["torch"]["best_variant"]["decode_tok_s"] == "bfloat16"
    assert result["skipped"] == {"torch float32": "MemoryError: too big"}
