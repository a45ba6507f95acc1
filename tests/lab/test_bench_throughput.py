"""`bench` as a command: the order of its runs, its keys, and how it complains."""

import json
from argparse import ArgumentParser, Namespace
from dataclasses import replace

import pytest
from tests.helpers.throughput import LIMITS, SPEC, TINY, Children, bench, run_of_spec

from tiny_llm_lab.cli import dispatch as cli
from tiny_llm_lab.measure.bench import sweep
from tiny_llm_lab.measure.bench.flags import random_bits
from tiny_llm_lab.measure.bench.throughput import command
from tiny_llm_lab.measure.bench.throughput.result import result_of, section_of
from tiny_llm_lab.runtime.console.field_flags import given_fields
from tiny_llm_lab.runtime.console.talk import CrashError
from tiny_llm_lab.runtime.native.compiling import limits
from tiny_llm_lab.types import SamplingParams, UserError

Capture = pytest.CaptureFixture[str]


def test_a_real_run_reports_every_key(monkeypatch, capsys):
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


def test_rounded_activations_take_turns_with_exact_ones(monkeypatch, capsys):
    children = Children()
    assert bench(monkeypatch, children, "--activation-bits", "8", "--baselines", "mlx-lm", "--json") == 0
    turns = [(spec.solution, spec.activation_bits) for spec in children.asked]
    order = [("ref", 8), ("ref", 16), ("mlx-lm", "auto")]
    assert turns == order + order[::-1]
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert result["activation_bits"] == result["settings"]["activation_bits"] == 8
    assert result["peers"]["ref"]["best_variant"]["decode_tok_s"] == "exact activations"


def test_a_models_own_sampling_is_measured_next_to_greedy_which_peers_are(monkeypatch, capsys):
    children, flags = Children(), ("--temperature", "0.7", "--top-k", "20")
    assert bench(monkeypatch, children, *flags, "--baselines", "mlx-lm", "--json") == 0
    turns = [(spec.title, spec.sampling.temperature) for spec in children.asked[:3]]
    assert turns == [("ref", 0.7), ("ref greedy", 0), ("mlx-lm", 0)]
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert result["sampling"] == "temperature 0.7, top_k 20" in result["sections"][0]["title"]
    assert bench(monkeypatch, Children(), "--baselines", "mlx-lm") == 0
    assert ", greedy, " in capsys.readouterr().out, "the shrunk models say nothing"


def test_other_engines_are_compared_with_our_greedy_row():
    ours = replace(SPEC, sampling=SamplingParams(0.7))
    plain, peer = replace(SPEC, variant="greedy"), replace(SPEC, solution="mlx-lm")
    runs = {spec: [run_of_spec(spec, step_s=s)] for spec, s in ((ours, 0.2), (plain, 0.1), (peer, 0.4))}
    rows = section_of(runs, [], {"model": "m", "batch": 1, "threads": 1, "repeats": 1}).rows
    ratios = [row.samples.get("decode_tok_s_ratio") for row in rows]
    assert ratios == [None, [pytest.approx(0.5)], [pytest.approx(4)]]
    assert result_of(runs, rows, [])["peers"]["mlx-lm"]["ratio"]["decode_tok_s"] == pytest.approx(4)


def test_a_step_ahead_is_for_our_loop(monkeypatch, capsys):
    children = Children()
    assert bench(monkeypatch, children, "--no-async-scheduling", "--baselines", "mlx-lm", "--json") == 0
    asked = {spec.solution: spec.async_scheduling for spec in children.asked}
    assert asked == {"ref": False, "mlx-lm": None}
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["async_scheduling"] is False


@pytest.mark.parametrize(
    ("failure", "code", "last_line"),
    [
        (UserError("unknown model 'x'"), 2, "error: unknown model 'x'"),
        (CrashError("Boom"), 1, "error: the process of solution ref crashed: see above"),
    ],
)
def test_our_own_failure_ends_the_run(monkeypatch, capsys, failure, code, last_line):
    assert bench(monkeypatch, Children({"ref": failure})) == code
    captured = capsys.readouterr()
    assert captured.err.splitlines()[-1] == last_line and captured.out == ""


def test_without_a_compiler_there_are_rates_but_no_limits(monkeypatch, capsys):
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
def test_a_random_model_has_4_bits_unless_it_says_otherwise(model, bits):
    assert random_bits(model) == model + bits
    parser = ArgumentParser()
    command.add_arguments(parser)
    args = parser.parse_args(["--model", model], Namespace())
    sizes = command.Sizes(**given_fields(args, command.Sizes))
    assert command.checked(args, sizes)[0].model == model + bits
    assert "default: 4" in " ".join(parser.format_help().split())
