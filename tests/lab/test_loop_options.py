"""`batch-main` with the policies of week 2's loop: what reaches the loop, and what is said afterwards."""

import json

import pytest
from tests.helpers.fake_serving import parse

from tiny_llm_lab.cli import batch_main
from tiny_llm_lab.cli import dispatch as cli
from tiny_llm_lab.serving.options.loop_options import loop_settings
from tiny_llm_lab.types import UserError

PRIORITY = ("--scheduling", "priority")
PREEMPT = (*PRIORITY, "--preempt-prefill")


@pytest.fixture
def prompts(tmp_path):
    path = tmp_path / "prompts.json"
    long = {"prompt": "x" * 200, "max_tokens": 3, "priority_class": "batch"}
    path.write_text(json.dumps(["Hello", long, {"prompt": "Bye", "max_tokens": 2, "arrival_s": 0.001}]))
    return str(path)


def flags(*argv):
    return parse(batch_main, *argv)


def document(capsys, prompts, *argv):
    assert cli.main(["batch-main", "--json", "--raw", "--prompts", prompts, "--max-tokens", "20", *argv]) == 0
    return json.loads(capsys.readouterr().out)


POLICIES = [
    ((), 128, False),
    (("--chunk-policy", "fixed", "--prefill-step", "32"), 32, False),
    (("--chunk-policy", "table"), None, False),
    (("--chunk-policy", "adaptive"), 128, True),
    (("--chunk-policy", "adaptive", "--prefill-step", "64", "--chunk-target-ms", "20"), 64, True),
]


@pytest.mark.parametrize(("argv", "step", "is_adaptive"), POLICIES)
def test_a_chunk_policy_is_a_base_and_who_changes_it(argv, step, is_adaptive):
    found = loop_settings(flags(*argv)).arguments
    assert found["prefill_step"] == step
    assert ("chunk_policy" in found) == is_adaptive
    if is_adaptive:
        assert found["chunk_policy"].decode_latency_target == (0.02 if len(argv) > 2 else 0.05)


def test_the_flags_of_the_scheduler_reach_it():
    assert "prefill_policy" not in loop_settings(flags()).arguments
    plain = loop_settings(flags(*PRIORITY)).scheduler
    assert (plain.reserved_rows, plain.long_tokens) == (0, None)
    more = ("--reserved-slots", "2", "--paused-kv-bits", "8", "--paused-kv-limit", "9000")
    found = loop_settings(flags(*PREEMPT, "40", *more)).scheduler
    assert (found.reserved_rows, found.long_tokens) == (2, 40)
    assert (found.paused.kv_bits, found.paused.limit_bytes) == (8, 9000)
    assert loop_settings(flags(*PREEMPT)).shown == {"scheduling": "priority", "preempt_prefill": 256}


def test_chunks_are_counted_and_shown(toy, prompts, capsys):
    found = document(capsys, prompts, "--prefill-step", "50")
    counted = found["prefill"]
    assert counted["num_chunks"] == 1 + 4 + 1 and counted["num_prompt_tokens"] == 208
    steps = counted["num_decode_steps"]
    assert counted["prompt_tokens_per_decode_step"] == pytest.approx(208 / steps)
    assert found["settings"]["prefill_step"] == 50 and "num_pauses" not in counted
    assert cli.main(["batch-main", "--raw", "--prompts", prompts, "--prefill-step", "50"]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("6 chunks, ") and last.endswith(" prompt tokens per decode step")


ANSWERS = [
    ("--chunk-policy", "table"),
    ("--chunk-policy", "adaptive"),
    (*PREEMPT, "10", "--prefill-step", "20"),
    (*PREEMPT, "10", "--prefill-step", "20", "--paused-kv-limit", "0"),
    (*PRIORITY, "--reserved-slots", "1"),
]


@pytest.mark.parametrize("argv", ANSWERS)
def test_no_policy_changes_an_answer(toy, prompts, capsys, argv):
    plain, found = document(capsys, prompts), document(capsys, prompts, *argv)
    texts = [[request["text"] for request in each["requests"]] for each in (plain, found)]
    assert texts[0] == texts[1] and all(texts[0])
    named = {key: value for key, value in found["settings"].items() if key not in plain["settings"]}
    assert named, "what was asked for is told"


def test_pauses_are_counted_and_shown(toy, tmp_path, capsys):
    path = tmp_path / "prompts.json"
    path.write_text(json.dumps(["x" * 200, *"abcde"]))  # all are there from the start, all interactive
    argv = (*PREEMPT, "10", "--prefill-step", "20", "--paused-kv-limit", "0")
    counted = document(capsys, str(path), *argv)["prefill"]
    assert counted["num_pauses"] == counted["num_evictions"] == 5 and counted["peak_bytes"] == 0
    argv = (*argv[:-2], "--paused-kv-bits", "8")
    counted = document(capsys, str(path), *argv)["prefill"]
    assert counted["num_pauses"] == 5 and counted["num_evictions"] == 0 and counted["peak_bytes"] > 0
    assert cli.main(["batch-main", "--raw", "--prompts", str(path), *argv]) == 0
    assert "5 pauses, 0.0 MB at the peak, 0 caches dropped" in capsys.readouterr().out


@pytest.mark.parametrize("argv", [("--chunk-policy", "table"), PRIORITY])
def test_mlx_lm_has_no_policies(argv):
    with pytest.raises(UserError, match="choose --solution ref or mine"):
        loop_settings(flags(*argv, "--solution", "mlx-lm"))
    assert loop_settings(flags("--solution", "mlx-lm")).arguments == {"prefill_step": 128}
