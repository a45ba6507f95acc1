"""`bench` as a command: the order of its runs, its keys, and how it complains."""

import json
from argparse import ArgumentParser, Namespace
from dataclasses import replace

import pytest
from tests.helpers.throughput import LIMITS, SPEC, run_of_spec

from tiny_llm_lab.cli import dispatch as cli
from tiny_llm_lab.measure.bench import sweep
from tiny_llm_lab.measure.bench.flags import random_bits
from tiny_llm_lab.measure.bench.peers.registry import PEERS
from tiny_llm_lab.measure.bench.run import Run
from tiny_llm_lab.measure.bench.spec import Spec
from tiny_llm_lab.measure.bench.throughput import command
from tiny_llm_lab.measure.bench.throughput.result import result_of, section_of
from tiny_llm_lab.runtime.console.field_flags import given_fields
from tiny_llm_lab.runtime.console.talk import CrashError
from tiny_llm_lab.runtime.native.compiling import limits
from tiny_llm_lab.types import SamplingParams, UserError

Capture = pytest.CaptureFixture[str]
TINY = ["bench", "--model", "random:qwen3-shrunk", "--device", "cpu", "--prompt-len", "16"]


def test_a_real_run_reports_every_key(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setattr(command, "measure", lambda threads: LIMITS)
    argv = ["--output-len", "16", "--batch", "2", "--repeats", "1", "--threads", "2", "--json"]
    assert cli.main([*TINY, "--solution", "ref", *argv]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    wanted = "prefill_tok_s decode_tok_s limit_gb_s weights_bytes spread model solution batch threads host"
    wanted += " f32_gflop_s bf16_gflop_s int8_gop_s share_of_limit prompt_len output_len skipped"
    assert set(wanted.split()) <= result.keys()
    assert (result["schema"], result["benchmark"]) == (1, "throughput")
    assert result["model"] == "random:qwen3-shrunk,bits=4" and result["solution"] == "ref"
    assert (result["batch"], result["threads"], result["limit_gb_s"]) == (2, 2, 20.0)
    assert result["prefill_tok_s"] > 0 and result["decode_tok_s"] > 0 and result["share_of_limit"] > 0
    assert result["decode_tok_s"] == pytest.approx(2 / result["decode_step_s"])


class Children:
    """Stands in for the processes; `fail` maps a variant to what its process ends with."""

    def __init__(self, fail: dict[str, Exception] | None = None) -> None:
        self.asked: list[Spec] = []
        self.fail = fail or {}

    def __call__(self, measure: object, spec: Spec, threads: int) -> Run:
        assert threads == spec.threads > 0, "no engine may have more threads than the others"
        self.asked.append(spec)
        if failure := self.fail.get(spec.variant or spec.solution):
            raise failure
        return run_of_spec(spec)


def bench(monkeypatch: pytest.MonkeyPatch, children: Children, *argv: str) -> int:
    monkeypatch.setattr(sweep, "run_fresh", children)
    monkeypatch.setattr(command, "measure", lambda threads: LIMITS)
    return cli.main([*TINY, "--repeats", "2", *argv])


def installed(monkeypatch: pytest.MonkeyPatch, is_there: bool) -> None:
    for name, peer in PEERS.items():
        module = "json" if is_there else "no_such_module"
        monkeypatch.setitem(PEERS, name, replace(peer, requires=(module,)))


def test_a_missing_baseline_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    installed(monkeypatch, False)
    assert bench(monkeypatch, Children(), "--baselines", "torch", "--json") == 0
    captured = capsys.readouterr()
    (line,) = [line for line in captured.err.splitlines() if "torch" in line]
    assert "not installed: run pip install" in line
    result = json.loads(captured.out)
    assert "not installed" in result["skipped"]["torch"] and result["peers"] == {}


def test_engines_take_turns(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    installed(monkeypatch, True)
    children = Children()
    assert bench(monkeypatch, children, "--baselines", "torch,mlx-lm") == 0
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
def test_llama_cpp_has_as_many_bits_as_the_model(
    monkeypatch: pytest.MonkeyPatch, bits: str, formats: list[str]
) -> None:
    installed(monkeypatch, True)
    children = Children()
    assert bench(monkeypatch, children, "--bits", bits, "--repeats", "1", "--baselines", "llama.cpp") == 0
    variants = [spec.variant for spec in children.asked if spec.solution == "llama.cpp"]
    assert variants == [variant for each in formats for variant in (f"{each} fa", each)]


def test_rounded_activations_take_turns_with_exact_ones(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    installed(monkeypatch, True)
    children = Children()
    assert bench(monkeypatch, children, "--activation-bits", "8", "--baselines", "mlx-lm", "--json") == 0
    turns = [(spec.solution, spec.activation_bits) for spec in children.asked]
    order = [("ref", 8), ("ref", 16), ("mlx-lm", "auto")]
    assert turns == order + order[::-1]
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert result["activation_bits"] == result["settings"]["activation_bits"] == 8
    assert result["peers"]["ref"]["best_variant"]["decode_tok_s"] == "exact activations"


def test_a_models_own_sampling_is_measured_next_to_greedy_which_peers_are(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    installed(monkeypatch, True)
    children, flags = Children(), ("--temperature", "0.7", "--top-k", "20")
    assert bench(monkeypatch, children, *flags, "--baselines", "mlx-lm", "--json") == 0
    turns = [(spec.title, spec.sampling.temperature) for spec in children.asked[:3]]
    assert turns == [("ref", 0.7), ("ref greedy", 0), ("mlx-lm", 0)]
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert result["sampling"] == "temperature 0.7, top_k 20" in result["sections"][0]["title"]
    assert bench(monkeypatch, Children(), "--baselines", "mlx-lm") == 0
    assert ", greedy, " in capsys.readouterr().out, "the shrunk models say nothing"


def test_other_engines_are_compared_with_our_greedy_row() -> None:
    ours = replace(SPEC, sampling=SamplingParams(0.7))
    plain, peer = replace(SPEC, variant="greedy"), replace(SPEC, solution="mlx-lm")
    runs = {spec: [run_of_spec(spec, step_s=s)] for spec, s in ((ours, 0.2), (plain, 0.1), (peer, 0.4))}
    rows = section_of(runs, [], {"model": "m", "batch": 1, "threads": 1, "repeats": 1}).rows
    ratios = [row.samples.get("decode_tok_s_ratio") for row in rows]
    assert ratios == [None, [pytest.approx(0.5)], [pytest.approx(4)]]
    assert result_of(runs, rows, [])["peers"]["mlx-lm"]["ratio"]["decode_tok_s"] == pytest.approx(4)


def test_a_step_ahead_is_for_our_loop(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    installed(monkeypatch, True)
    children = Children()
    assert bench(monkeypatch, children, "--no-async-scheduling", "--baselines", "mlx-lm", "--json") == 0
    asked = {spec.solution: spec.async_scheduling for spec in children.asked}
    assert asked == {"ref": False, "mlx-lm": None}
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["async_scheduling"] is False


def test_a_peer_that_fails_is_left_out(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    installed(monkeypatch, True)
    children = Children({"float32": CrashError("Traceback\nMemoryError: too big")})
    assert bench(monkeypatch, children, "--baselines", "torch", "--json") == 0
    captured = capsys.readouterr()
    assert "torch float32 is left out: MemoryError: too big" in captured.err
    result = json.loads(captured.out)
    assert [row["name"] for row in result["sections"][0]["rows"]] == ["ref", "torch bfloat16"]
    assert result["peers"]["torch"]["best_variant"]["decode_tok_s"] == "bfloat16"
    assert result["skipped"] == {"torch float32": "MemoryError: too big"}


@pytest.mark.parametrize(
    ("failure", "code", "last_line"),
    [
        (UserError("unknown model 'x'"), 2, "error: unknown model 'x'"),
        (CrashError("Boom"), 1, "error: the process of solution ref crashed: see above"),
    ],
)
def test_our_own_failure_ends_the_run(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture, failure: Exception, code: int, last_line: str
) -> None:
    assert bench(monkeypatch, Children({"ref": failure})) == code
    captured = capsys.readouterr()
    assert captured.err.splitlines()[-1] == last_line and captured.out == ""


def test_without_a_compiler_there_are_rates_but_no_limits(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    limits._compiled.cache_clear()
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setattr(sweep, "run_fresh", Children())
    assert cli.main([*TINY, "--json"]) == 0
    captured = capsys.readouterr()
    assert captured.err.count("cannot find a C++ compiler: install g++ or clang") == 1
    result = json.loads(captured.out)
    assert result["limit_gb_s"] is None and result["decode_tok_s"] == pytest.approx(10.0)


@pytest.mark.parametrize(
    ("model", "bits"),
    [
        ("random:qwen3-0.6b", ",bits=4"),
        ("random:qwen3-0.6b,bits=16", ""),
        ("random:qwen3-0.6b-4bit", ""),
        ("x", ""),
    ],
)
def test_a_random_model_has_4_bits_unless_it_says_otherwise(model: str, bits: str) -> None:
    assert random_bits(model) == model + bits
    parser = ArgumentParser()
    command.add_arguments(parser)
    args = parser.parse_args(["--model", model], Namespace())
    sizes = command.Sizes(**given_fields(args, command.Sizes))
    assert command.checked(args, sizes)[0].model == model + bits
    assert "default: 4" in " ".join(parser.format_help().split())
