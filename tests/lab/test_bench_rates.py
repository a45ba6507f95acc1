"""`bench`: the arithmetic of its rates, and what it reports of them."""

import json
import math
import os
from argparse import ArgumentParser, Namespace
from dataclasses import replace

import pytest
from tests.helpers.throughput import LIMITS, SPEC, TINY, Children, bench, run_of_spec

from tiny_llm_lab import load_checkpoint
from tiny_llm_lab.cli import dispatch as cli
from tiny_llm_lab.measure.bench import fresh
from tiny_llm_lab.measure.bench.flags import random_bits
from tiny_llm_lab.measure.bench.fresh import run_fresh
from tiny_llm_lab.measure.bench.peer import PeerTimes, num_kv_numbers, num_read_weights, run_of
from tiny_llm_lab.measure.bench.run import Run, chunks_of
from tiny_llm_lab.measure.bench.sample import measure, weights_bytes
from tiny_llm_lab.measure.bench.spec import Schedule, at_once
from tiny_llm_lab.measure.bench.throughput import command
from tiny_llm_lab.measure.traffic.request import Request
from tiny_llm_lab.runtime.console.field_flags import given_fields
from tiny_llm_lab.runtime.console.talk import CrashError, UnwrittenError
from tiny_llm_lab.runtime.models.config.model_config import read_config
from tiny_llm_lab.runtime.models.registry import find_folder
from tiny_llm_lab.runtime.models.weights.layout import EXPERTS, parameter_shapes
from tiny_llm_lab.runtime.models.weights.tower_layout import TOWER
from tiny_llm_lab.runtime.native.compiling import limits
from tiny_llm_lab.types import PrefillEvent, SamplingParams, Timing, TokenEvent, UserError


def recorded(prompt_len, token_s, prefill_s):
    """A run of requests whose chunk ended and whose tokens came at these times."""
    events = []
    for idx, (times, end_s) in enumerate(zip(token_s, prefill_s, strict=True)):
        events.append(PrefillEvent(idx, prompt_len, prompt_len, end_s))
        events += [TokenEvent(idx, 0, "", time_s) for time_s in times]
    events.sort(key=lambda event: event.time_s)
    requests = tuple(Request("early", prompt_len, len(times)) for times in token_s)
    timings = tuple(Timing(0.0, tuple(times)) for times in token_s)
    return Run(requests, timings, chunks_of(events, 0.0, timings))


def test_rates_of_one_request():
    # 40 tokens in two seconds; then a slow first step, which is not counted, and four of half a second.
    run = recorded(40, [[2.0, 9.0, 9.5, 10.0, 10.5, 11.0]], [1.9])
    rates = command.rates_of(run)
    assert rates.prefill_tok_s == pytest.approx(20.0)
    assert rates.decode_tok_s == pytest.approx(2.0)
    assert rates.decode_step_s == pytest.approx(0.5)
    assert rates.context == pytest.approx(40 + (2 + 3 + 4 + 5) / 4)


def test_decode_counts_only_steps_of_the_full_batch():
    # The second prompt is in prefill from 1 to 4. Full steps take a second, lonely ones a tenth.
    first = [1.0, 4.1, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0]
    second = [4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 10.1]
    run = recorded(30, [first, second], [1.0, 4.0])
    rates = command.rates_of(run)
    assert rates.decode_tok_s == pytest.approx(2.0)
    assert rates.prefill_tok_s == pytest.approx((30 / 1 + 30 / 3) / 2), "the median prompt, each by itself"


def test_prompts_computed_together_share_their_time():
    times = [2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]
    run = recorded(30, [times, times], [1.999, 1.9991])
    assert command.rates_of(run).prefill_tok_s == pytest.approx(30, rel=0.01)


def test_too_few_full_steps_are_refused_with_the_cure():
    run = recorded(30, [[1.0, 2.0, 3.0]], [1.0])
    with pytest.raises(UserError, match=r"leaves 1 step .* raise it by 3 or more"):
        command.rates_of(run)


@pytest.mark.parametrize(("batch", "step", "needed"), [(1, 512, 7), (8, 512, 14), (3, 100, 19)])
def test_the_shortest_answer(batch, step, needed):
    assert command.needed_output_len(batch, 512, step) == needed


def test_the_shortest_answer_is_enough_for_the_reference():
    needed = command.needed_output_len(3, 16, 8)
    spec = replace(SPEC, batch_size=3, schedule=Schedule(8), requests=at_once(3, 16, needed))
    rates = command.rates_of(measure(spec))
    assert rates.decode_tok_s * rates.decode_step_s == pytest.approx(3), (
        "every counted step has a token of each request"
    )


def test_a_peer_is_reckoned_like_ours():
    spec = replace(SPEC, requests=at_once(3, 40, 6))
    config = read_config(find_folder(SPEC.model) / "config.json")[0]
    steps_s = [9.0, 0.5, 0.5, 0.5, 0.5]  # the first is not counted, as with ours
    run = run_of(spec, config, PeerTimes([4.0, 2.0, 1.0], steps_s, 0.5, 2, "1.2"))
    assert run.weights_bytes == num_read_weights(config) // 2 and run.facts == {"version": "1.2"}
    assert run.kv_bytes_per_token == 2 * num_kv_numbers(config)
    alone = command.rates_of(run)
    assert alone.prefill_tok_s == 20.0 and alone.decode_tok_s == 6.0
    assert alone.context == pytest.approx(40 + (2 + 3 + 4 + 5) / 4)
    together = command.rates_of(run_of(spec, config, PeerTimes([6.0], steps_s, 1, 1, "")))
    assert together.prefill_tok_s == 20.0 and together.decode_tok_s == 6.0


def test_bytes_that_a_step_reads():
    tied = load_checkpoint("random:qwen3-shrunk,bits=4", "cpu")
    numbers = num_read_weights(tied.config)
    norms = sum(math.prod(size) for _, size in parameter_shapes(tied.config) if len(size) == 1)
    # Four bits, and for each 64 of them two numbers of float32.
    assert weights_bytes(tied) == numbers // 2 + numbers // 64 * 8 + norms * 4
    run = measure(SPEC)
    assert run.weights_bytes == weights_bytes(tied)
    assert run.kv_bytes_per_token == num_kv_numbers(tied.config) * 4 == 3 * 2 * 2 * 32 * 4
    assert run.state_bytes == 0
    untied = load_checkpoint("random:qwen2.5-shrunk,bits=32", "cpu")
    embedding = untied.config.vocab_size * untied.config.hidden_size
    everything = sum(math.prod(size) for _, size in parameter_shapes(untied.config))
    assert weights_bytes(untied) == (everything - embedding) * 4


@pytest.mark.parametrize(
    "name", ["qwen3-moe-shrunk", "qwen3.5-moe-shrunk", "qwen3-30b-a3b,layers=2,hidden=64"]
)
@pytest.mark.parametrize("batch", [1, 2, 64])
def test_a_step_reads_the_experts_that_its_tokens_chose(name, batch):
    experts = {"experts": 8, "active": 3, "vocab": 320}
    model = f"random:{name},{','.join(f'{key}={value}' for key, value in experts.items())},bits=32"
    checkpoint = load_checkpoint(model, "cpu")
    shapes = dict(parameter_shapes(checkpoint.config))
    stacked = sum(math.prod(shape) for path, shape in shapes.items() if EXPERTS in path)
    others = sum(math.prod(shape) for shape in shapes.values()) - stacked - 320 * 64  # no embedding: untied
    drawn = {1: 3 / 8, 2: 1 - (5 / 8) ** 2, 64: 1.0}[batch]
    assert stacked and weights_bytes(checkpoint, batch) == pytest.approx(4 * (others + drawn * stacked))
    matrices = sum(math.prod(shape) for shape in shapes.values() if len(shape) == 2) - 320 * 64
    spec = replace(SPEC, requests=at_once(batch, 16, 8), batch_size=batch)
    times = PeerTimes([1.0], [1.0] * 8, 1, 1, "")
    assert run_of(spec, checkpoint.config, times).weights_bytes == pytest.approx(
        matrices + drawn * stacked, abs=1
    )
    if batch < 64:  # what is measured has the same batch
        run = measure(replace(spec, model=model))
        assert run.weights_bytes == weights_bytes(checkpoint, batch)


@pytest.mark.parametrize("name", ["qwen3-vl-shrunk", "qwen3.5-vl-shrunk"])
def test_a_step_reads_no_tower(name):
    config = read_config(find_folder(f"random:{name}") / "config.json")[0]
    matrices = {path: math.prod(shape) for path, shape in parameter_shapes(config) if len(shape) == 2}
    tower = sum(size for path, size in matrices.items() if path.startswith(TOWER))
    assert tower > 0 and num_read_weights(config) == sum(matrices.values()) - tower


def peer(variant, prefill_s, step_s):
    spec = replace(SPEC, solution="p", variant=variant)
    return {spec: [run_of_spec(spec, prefill_s, step_s)]}


def report(runs, limits):
    settings = {"model": "m", "batch": 1, "threads": 2, "repeats": 1}
    return command.result_of(runs, command.section_of(runs, limits, settings).rows, limits)


def test_shares_ratios_and_the_best_variant():
    # Prompts of 16 tokens, a decode step of a tenth of a second.
    runs = {SPEC: [run_of_spec(SPEC, prefill_s) for prefill_s in (0.16, 16 / 300, 0.08)]}
    runs |= peer("x", prefill_s=0.32, step_s=0.2) | peer("y", prefill_s=0.8, step_s=0.025)
    result = report(runs, [LIMITS, replace(LIMITS, read_gb_s=10.0)])
    assert result["prefill_tok_s"] == pytest.approx(200.0)
    assert result["spread"]["prefill_tok_s"] == pytest.approx({"min": 100.0, "max": 300.0})
    assert result["limit_gb_s"] == 20.0 and [each["read_gb_s"] for each in result["limits"]] == [20.0, 10.0]
    # 0.9 GB of weights and 2 MB for each of 24.5 tokens, in a tenth of a second.
    assert result["share_of_limit"] == pytest.approx((0.9 + 24.5 * 0.002) / 0.1 / 20)
    found = result["peers"]["p"]
    assert found["best_variant"] == {"prefill_tok_s": "x", "decode_tok_s": "y"}
    assert found["ratio"] == pytest.approx({"prefill_tok_s": 4.0, "decode_tok_s": 0.25})


def test_a_gpu_has_no_share_of_the_cpu_limit():
    result = report({SPEC: [run_of_spec(SPEC, facts={"device": "gpu"})]}, [LIMITS])
    assert result["limit_gb_s"] is None and result["share_of_limit"] is None


def test_limits_that_the_cpu_does_not_have_are_named():
    line = command.limits_line([LIMITS, LIMITS])
    assert "read 20.0 then 20.0 GB/s" in line and "bf16 none" in line


def test_a_machine_that_changed_is_told():
    assert command.drift_line([LIMITS, replace(LIMITS, read_gb_s=22.0)]) is None
    warning = command.drift_line([LIMITS, replace(LIMITS, f32_gflop_s=50.0)])
    assert warning is not None and "f32 peak" in warning and "100%" in warning


def test_a_state_is_read_and_written():
    run = measure(replace(SPEC, model="random:qwen3.5-shrunk"))
    sizes = run.state_bytes, run.kv_bytes_per_token
    assert sizes == (3 * 4 * (4 * 16 * 24 + 3 * 160), 2 * 2 * 2 * 32 * 4), "three layers of five have states"
    rates, alike = (
        command.rates_of(run),
        command.rates_of(replace(run, weights_bytes=0, kv_bytes_per_token=0)),
    )
    assert alike.decode_read_gb_s * rates.decode_step_s * 1e9 == pytest.approx(2 * run.state_bytes)
    assert rates.decode_read_gb_s > alike.decode_read_gb_s


# `bench` as a command: the order of its runs, its keys, and how it complains


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
    rows = command.section_of(runs, [], {"model": "m", "batch": 1, "threads": 1, "repeats": 1}).rows
    ratios = [row.samples.get("decode_tok_s_ratio") for row in rows]
    assert ratios == [None, [pytest.approx(0.5)], [pytest.approx(4)]]
    assert command.result_of(runs, rows, [])["peers"]["mlx-lm"]["ratio"]["decode_tok_s"] == pytest.approx(4)


def test_a_step_ahead_is_for_our_loop(monkeypatch, capsys):
    children = Children()
    assert bench(monkeypatch, children, "--no-async-scheduling", "--baselines", "mlx-lm", "--json") == 0
    asked = {spec.solution: spec.async_scheduling for spec in children.asked}
    assert asked == {"ref": False, "mlx-lm": None}
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["async_scheduling"] is False


FAILURES = [
    (UserError("unknown model 'x'"), 2, "error: unknown model 'x'"),
    (CrashError("Boom"), 1, "error: the process of solution ref crashed: see above"),
]


@pytest.mark.parametrize(("failure", "code", "last_line"), FAILURES)
def test_our_own_failure_ends_the_run(monkeypatch, capsys, failure, code, last_line):
    assert bench(monkeypatch, Children({"ref": failure})) == code
    captured = capsys.readouterr()
    assert captured.err.splitlines()[-1] == last_line and captured.out == ""


def test_without_a_compiler_there_are_rates_but_no_limits(monkeypatch, capsys):
    limits._compiled.cache_clear()
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setattr(fresh, "run_fresh", Children())
    assert cli.main([*TINY, "--json"]) == 0
    captured = capsys.readouterr()
    assert captured.err.count("cannot find a C++ compiler: install g++ or clang") == 1
    result = json.loads(captured.out)
    assert result["limit_gb_s"] is None and result["decode_tok_s"] == pytest.approx(10.0)


RANDOM_MODELS = [
    ("random:qwen3-0.6b", ",bits=4"),
    ("random:qwen3-0.6b,bits=16", ""),
    ("random:qwen3-0.6b-4bit", ""),
    ("x", ""),
]


@pytest.mark.parametrize(("model", "bits"), RANDOM_MODELS)
def test_a_random_model_has_4_bits_unless_it_says_otherwise(model, bits):
    assert random_bits(model) == model + bits
    parser = ArgumentParser()
    command.add_arguments(parser)
    args = parser.parse_args(["--model", model], Namespace())
    sizes = command.Sizes(**given_fields(args, command.Sizes))
    assert command.checked(args, sizes)[0].model == model + bits
    assert "default: 4" in " ".join(parser.format_help().split())


# Functions in fresh processes: what comes back, and how they fail


def threads_of(name):
    print("a line that is no result")
    return os.getpid(), os.environ.get(name)


def fail(how):
    errors = {
        "user": UserError("too long"),
        "todo": RuntimeError("task 2.2.3"),
        "bug": KeyError("no such key"),
        "type": TypeError("'int' object is not iterable"),
        "later": TypeError("softmax() got an unexpected keyword argument 'ops'"),
    }
    if how in errors:
        raise errors[how]
    os._exit(9)


def test_a_fresh_process_has_its_own_threads_and_leaves_stdout_alone(monkeypatch, capfd):
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    first, threads = run_fresh(threads_of, "OMP_NUM_THREADS", 3)
    assert first != os.getpid() and threads == "3" and os.environ["OMP_NUM_THREADS"] == "5"
    again, threads = run_fresh(threads_of, "OMP_NUM_THREADS")
    assert again not in (first, os.getpid()) and threads == "5"
    captured = capfd.readouterr()
    assert captured.out == "" and "a line that is no result" in captured.err


COMES_BACK = [
    ("user", UserError, "^too long$"),
    ("todo", UnwrittenError, r"TODO 2\.2\.3"),
    ("bug", CrashError, "no such key"),
    ("type", CrashError, "not iterable"),
    ("later", TypeError, "^softmax.. got an unexpected keyword"),
    ("exit", CrashError, "ended without a result"),
]


@pytest.mark.parametrize(("how", "kind", "message"), COMES_BACK)
def test_a_failure_comes_back_as_what_it_is(how, kind, message):
    with pytest.raises(kind, match=message):
        run_fresh(fail, how)
