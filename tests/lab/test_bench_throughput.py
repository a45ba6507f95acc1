"""`bench`: the arithmetic of its rates, the order of its runs, what it reports, and how it complains."""

import json
import math
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from tiny_llm_lab import cli, load_checkpoint
from tiny_llm_lab.bench.child import CrashError
from tiny_llm_lab.bench.flags import random_bits
from tiny_llm_lab.bench.peers import PEERS, PeerTimes, num_kv_numbers, num_read_weights, run_of
from tiny_llm_lab.bench.run import Run, chunks_of
from tiny_llm_lab.bench.sample import kv_bytes_per_token, weights_bytes
from tiny_llm_lab.bench.spec import Request, Schedule, Spec, at_once
from tiny_llm_lab.bench.throughput import command, targets
from tiny_llm_lab.bench.throughput.rates import MIN_STEPS, needed_output_len, rates_of
from tiny_llm_lab.bench.throughput.result import drift_line, limits_line, result_of
from tiny_llm_lab.bench.throughput.targets import BenchTarget, our_targets
from tiny_llm_lab.models.parameters import parameter_shapes
from tiny_llm_lab.native import limits
from tiny_llm_lab.native.limits import Limits
from tiny_llm_lab.types import Event, PrefillEvent, Timing, TokenEvent, UserError

Capture = pytest.CaptureFixture[str]
SPEC = Spec("random:qwen3-shrunk,bits=4", "ref", "cpu", None, Schedule(16), 1, at_once(1, 16, 16))
TINY = ["bench", "--model", "random:qwen3-shrunk", "--device", "cpu", "--prompt-len", "16"]
LIMITS = Limits(2, 20.0, 100.0, None, 200.0)
SAMPLE = {
    "prefill_tok_s": 100.0,
    "decode_tok_s": 10.0,
    "decode_step_s": 0.1,
    "context": 50.0,
    "weights_bytes": 900_000_000,
    "kv_bytes_per_token": 2_000_000,
    "facts": {"device": "cpu", "dtype": "float32"},
}


def recorded(prompt_len: int, token_s: Sequence[Sequence[float]], prefill_s: Sequence[float]) -> Run:
    """A run of requests whose chunk ended and whose tokens came at these times."""
    events: list[Event] = []
    for idx, (times, end_s) in enumerate(zip(token_s, prefill_s, strict=True)):
        events.append(PrefillEvent(idx, prompt_len, prompt_len, end_s))
        events += [TokenEvent(idx, 0, "", time_s) for time_s in times]
    events.sort(key=lambda event: event.time_s)  # type: ignore[union-attr]
    requests = tuple(Request("early", prompt_len, len(times)) for times in token_s)
    timings = tuple(Timing(0.0, tuple(times)) for times in token_s)
    return Run(requests, timings, chunks_of(events, 0.0, timings))


def test_rates_of_one_request() -> None:
    # 40 tokens in two seconds; then a slow first step, which is not counted, and four of half a second.
    run = recorded(40, [[2.0, 9.0, 9.5, 10.0, 10.5, 11.0]], [1.9])
    rates = rates_of(run)
    assert rates.prefill_tok_s == pytest.approx(20.0)
    assert rates.decode_tok_s == pytest.approx(2.0)
    assert rates.decode_step_s == pytest.approx(0.5)
    assert rates.context == pytest.approx(40 + (2 + 3 + 4 + 5) / 4)


def test_decode_counts_only_steps_of_the_full_batch() -> None:
    # The second prompt is in prefill from 1 to 4. Full steps take a second, lonely ones a tenth.
    first = [1.0, 4.1, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0]
    second = [4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 10.1]
    run = recorded(30, [first, second], [1.0, 4.0])
    rates = rates_of(run)
    assert rates.decode_tok_s == pytest.approx(2.0)
    assert rates.prefill_tok_s == pytest.approx((30 / 1 + 30 / 3) / 2), "the median prompt, each by itself"


def test_prompts_computed_together_share_their_time() -> None:
    times = [2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]
    run = recorded(30, [times, times], [1.999, 1.9991])
    assert rates_of(run).prefill_tok_s == pytest.approx(30, rel=0.01)


def test_too_few_full_steps_are_refused_with_the_cure() -> None:
    run = recorded(30, [[1.0, 2.0, 3.0]], [1.0])
    with pytest.raises(UserError, match=r"leaves 1 step .* raise it by 3 or more"):
        rates_of(run)


@pytest.mark.parametrize(("batch", "step", "needed"), [(1, 512, 7), (8, 512, 14), (3, 100, 19)])
def test_the_shortest_answer(batch: int, step: int, needed: int) -> None:
    assert needed_output_len(batch, 512, step) == needed


def test_the_shortest_answer_is_enough_for_the_reference() -> None:
    needed = needed_output_len(3, 16, 8)
    spec = replace(SPEC, batch_size=3, schedule=Schedule(8), requests=at_once(3, 16, needed))
    (target,) = our_targets(spec)
    target.run(0)
    steps = target.samples[0]["decode_tok_s"] * target.samples[0]["decode_step_s"]
    assert steps == pytest.approx(3), "every counted step has a token of each request"


def test_a_peer_is_reckoned_like_ours() -> None:
    spec = replace(SPEC, requests=at_once(3, 40, 6))
    steps_s = [9.0, 0.5, 0.5, 0.5, 0.5]  # the first is not counted, as with ours
    alone = rates_of(run_of(spec, PeerTimes([4.0, 2.0, 1.0], steps_s, 1, 1, "")))
    assert alone.prefill_tok_s == 20.0 and alone.decode_tok_s == 6.0
    assert alone.context == pytest.approx(40 + (2 + 3 + 4 + 5) / 4)
    together = rates_of(run_of(spec, PeerTimes([6.0], steps_s, 1, 1, "")))
    assert together.prefill_tok_s == 20.0 and together.decode_tok_s == 6.0


def test_bytes_that_a_step_reads() -> None:
    tied = load_checkpoint("random:qwen3-shrunk,bits=4", "cpu")
    numbers = num_read_weights(tied.config)
    norms = sum(math.prod(size) for _, size in parameter_shapes(tied.config) if len(size) == 1)
    # Four bits, and for each 64 of them two numbers of float32.
    assert weights_bytes(tied) == numbers // 2 + numbers // 64 * 8 + norms * 4
    assert kv_bytes_per_token(tied) == num_kv_numbers(tied.config) * 4 == 3 * 2 * 2 * 32 * 4
    untied = load_checkpoint("random:qwen2.5-shrunk,bits=32", "cpu")
    embedding = untied.config.vocab_size * untied.config.hidden_size
    everything = sum(math.prod(size) for _, size in parameter_shapes(untied.config))
    assert weights_bytes(untied) == (everything - embedding) * 4


def target(name: str, variant: str = "", **changes: Any) -> BenchTarget:
    return BenchTarget(replace(SPEC, solution=name, variant=variant), samples=[SAMPLE | changes])


def test_shares_ratios_and_the_best_variant() -> None:
    ours = target("o")
    ours.samples += [SAMPLE | {"prefill_tok_s": 300.0}, SAMPLE | {"prefill_tok_s": 200.0}]
    peers = [
        target("p", "x", prefill_tok_s=50.0, decode_tok_s=5.0),
        target("p", "y", prefill_tok_s=20.0, decode_tok_s=40.0),
    ]
    result = result_of([ours, *peers], [LIMITS, replace(LIMITS, read_gb_s=10.0)], 1, {})
    assert result["prefill_tok_s"] == 200.0
    assert result["spread"]["prefill_tok_s"] == {"min": 100.0, "max": 300.0}
    assert result["limit_gb_s"] == 20.0 and [each["read_gb_s"] for each in result["limits"]] == [20.0, 10.0]
    # 0.9 GB of weights and 0.1 GB of keys and values in a tenth of a second: 10 GB/s.
    assert result["share_of_limit"] == pytest.approx(0.5)
    peer = result["peers"]["p"]
    assert peer["best_variant"] == {"prefill_tok_s": "x", "decode_tok_s": "y"}
    assert peer["ratio"] == {"prefill_tok_s": 4.0, "decode_tok_s": 0.25}
    assert [variant["variant"] for variant in peer["variants"]] == ["x", "y"]


def test_a_gpu_has_no_share_of_the_cpu_limit() -> None:
    ours = target("o")
    ours.samples[0]["facts"] = {"device": "gpu"}
    result = result_of([ours], [LIMITS], 1, {})
    assert result["limit_gb_s"] is None and result["share_of_limit"] is None


def test_limits_that_the_cpu_does_not_have_are_named() -> None:
    line = limits_line([LIMITS, LIMITS])
    assert "read 20.0 then 20.0 GB/s" in line and "bf16 none" in line


def test_a_machine_that_changed_is_told() -> None:
    assert drift_line([LIMITS, replace(LIMITS, read_gb_s=22.0)]) is None
    warning = drift_line([LIMITS, replace(LIMITS, f32_gflop_s=50.0)])
    assert warning is not None and "f32 peak" in warning and "100%" in warning


def test_limits_are_measured_here() -> None:
    measured = limits.measure(1)
    assert 0.1 < measured.read_gb_s < 10_000 and 0.1 < measured.f32_gflop_s < 10_000


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
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.fail = fail or {}

    def __call__(self, module: str, request: str, environment: object = None) -> dict[str, Any]:
        value = json.loads(request)
        self.asked.append((module.rpartition(".")[2], value))
        if failure := self.fail.get(value["variant"] or value["solution"]):
            raise failure
        spec = Spec.from_json(request)
        steps_s = [0.1] * (spec.requests[0].max_tokens - 1)
        kept = {key: SAMPLE[key] for key in ("weights_bytes", "kv_bytes_per_token", "facts")}
        return run_of(spec, PeerTimes([0.16], steps_s, 1, 1, "")).to_json(**kept)


def bench(monkeypatch: pytest.MonkeyPatch, children: Children, *argv: str) -> int:
    monkeypatch.setattr(targets, "run_module", children)
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
    assert "not installed: pip install" in line
    result = json.loads(captured.out)
    assert "not installed" in result["skipped"]["torch"] and result["peers"] == {}


def test_engines_take_turns(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    installed(monkeypatch, True)
    children = Children()
    assert bench(monkeypatch, children, "--baselines", "torch,mlx-lm") == 0
    turns = [value["variant"] or value["solution"] for _, value in children.asked]
    order = ["ref", "bfloat16", "float32", "mlx-lm"]
    assert turns == order + order[::-1], "forwards, then backwards"
    assert [value["seed"] for _, value in children.asked] == [0] * 4 + [1] * 4
    lengths = {value["solution"]: value["requests"][0]["max_tokens"] for _, value in children.asked}
    slow = targets.SLOW_OUTPUT_LEN
    assert lengths == {"ref": 32, "torch": 32, "mlx-lm": slow}, "mlx-lm is slow on a CPU"
    captured = capsys.readouterr()
    assert f"answers of {targets.SLOW_OUTPUT_LEN} tokens, not as ours" in captured.err
    assert "torch bfloat16" in captured.out and "1.00x" in captured.out


def test_rounded_activations_take_turns_with_exact_ones(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    installed(monkeypatch, True)
    children = Children()
    assert bench(monkeypatch, children, "--activation-bits", "8", "--baselines", "mlx-lm", "--json") == 0
    turns = [(value["solution"], value["activation_bits"]) for _, value in children.asked]
    order: list[tuple[str, int | None]] = [("ref", 8), ("ref", None), ("mlx-lm", None)]
    assert turns == order + order[::-1]
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert result["activation_bits"] == 8
    assert result["peers"]["ref"]["best_variant"]["decode_tok_s"] == "exact activations"


def test_a_peer_that_fails_is_left_out(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    installed(monkeypatch, True)
    children = Children({"float32": CrashError("Traceback\nMemoryError: too big")})
    assert bench(monkeypatch, children, "--baselines", "torch", "--json") == 0
    captured = capsys.readouterr()
    assert "torch float32 is left out: MemoryError: too big" in captured.err
    result = json.loads(captured.out)
    assert [variant["variant"] for variant in result["peers"]["torch"]["variants"]] == ["bfloat16"]
    assert result["skipped"] == {"torch float32": "MemoryError: too big"}


@pytest.mark.parametrize(
    ("failure", "code", "last_line"),
    [
        (UserError("unknown model 'x'"), 2, "error: unknown model 'x'"),
        (CrashError("Boom"), 1, "error: the measuring process of solution ref crashed, see above"),
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
    monkeypatch.setattr(targets, "run_module", Children())
    assert cli.main([*TINY, "--json"]) == 0
    captured = capsys.readouterr()
    assert captured.err.count("no C++ compiler: install g++ or clang") == 1
    result = json.loads(captured.out)
    assert result["limit_gb_s"] is None and result["decode_tok_s"] == pytest.approx(10.0)


@pytest.mark.parametrize(
    ("argv", "complaint"),
    [
        (["--prompt-len", "0"], "--prompt-len: must be 1 or more, not 0"),
        (["--repeats", "0"], "--repeats: must be 1 or more"),
        (["--threads", "-1"], "--threads: must be 1 or more"),
        (["--prefill-step", "0"], "--prefill-step: must be 1 or more"),
        (["--batch", "8", "--output-len", "13"], "take 14 or more"),
        (["--baselines", "vllm"], "unknown baseline 'vllm': choose of mlx-lm, llama.cpp, torch"),
        (["--baseline-output-len", "3"], f"must be {MIN_STEPS + 3} or more"),
        (["--model", "random:qwen9"], "unknown model"),
    ],
)
def test_bad_usage_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture, argv: list[str], complaint: str
) -> None:
    assert bench(monkeypatch, Children(), *argv) == 2
    captured = capsys.readouterr()
    assert complaint in captured.err and captured.err.count("\n") == 1 and captured.out == ""


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
    assert command.checked(parser.parse_args(["--model", model], Namespace()))[0].model == model + bits
    assert "default: 4" in " ".join(parser.format_help().split())
