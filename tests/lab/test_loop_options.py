"""`batch-main` with the policies of week 2's loop: what reaches the loop, and what is said afterwards."""

import importlib
import json
import re
import subprocess
import sys
from argparse import ArgumentParser
from pathlib import Path

import mlx.core as mx
import pytest
from conftest import pytest_make_parametrize_id
from tests.helpers.fake_serving import parse

from tiny_llm_lab import load_checkpoint, load_solution
from tiny_llm_lab.cli import batch_main
from tiny_llm_lab.cli import dispatch as cli
from tiny_llm_lab.measure.load.flags import add_load_flags, add_server_flags
from tiny_llm_lab.serving.options.loop_options import loop_settings
from tiny_llm_lab.serving.server import command
from tiny_llm_lab.serving.server.command import model_settings
from tiny_llm_lab.types import UserError

Capture = pytest.CaptureFixture[str]
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


@pytest.mark.parametrize(
    ("argv", "step", "is_adaptive"),
    [
        ((), 128, False),
        (("--chunk-policy", "fixed", "--prefill-step", "32"), 32, False),
        (("--chunk-policy", "table"), None, False),
        (("--chunk-policy", "adaptive"), 128, True),
        (("--chunk-policy", "adaptive", "--prefill-step", "64", "--chunk-target-ms", "20"), 64, True),
    ],
)
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


@pytest.mark.parametrize(
    "argv",
    [
        ("--chunk-policy", "table"),
        ("--chunk-policy", "adaptive"),
        (*PREEMPT, "10", "--prefill-step", "20"),
        (*PREEMPT, "10", "--prefill-step", "20", "--paused-kv-limit", "0"),
        (*PRIORITY, "--reserved-slots", "1"),
    ],
)
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


# How the parameters of a test are named: a learner reads them in the list of what failed


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (mx.bfloat16, "bfloat16"),
        ((2, 1, 5), "2x1x5"),
        ((), "empty"),
        ([63, 1], "63_1"),
        ({"temperature": 0.5, "seed": 3}, "temperature=0.5_seed=3"),
        (None, "None"),
        (list(range(50)), None),
        ("a text with spaces", None),
        (object(), None),
    ],
)
def test_a_parameter_has_a_name_that_can_be_read(value, name):
    assert pytest_make_parametrize_id(value) == name


# What readers of vLLM's documentation, and of the outlines that this course follows, type


def parsed(*argv):
    """The settings of a server that is called with `argv`."""
    seen = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tiny_llm_lab.serving.server.command.run", lambda args: seen.append(args) or 0)
        assert cli.main(["serve", *argv]) == 0
    return model_settings(seen[0])


@pytest.mark.parametrize("package", ["tiny_llm", "tiny_llm_ref"])
def test_batch_generate_is_where_the_outline_imports_it(package):
    assert callable(importlib.import_module(f"{package}.batch").batch_generate)


def test_the_outlines_benchmark_says_what_to_pass(capsys):
    """Its long prompts have more tokens in the default model's vocabulary than `max_seq_len` allows."""
    checkpoint, llm = load_checkpoint("default"), load_solution("ref")
    prompts = ["Write a detailed essay about " + "artificial intelligence " * 100, "Hello"]
    length = len(checkpoint.tokenizer.encode(prompts[0]))
    model = llm.build_model(checkpoint)
    done = llm.batch_generate(model, checkpoint.tokenizer, prompts, prefill_step=512)
    assert [each.finish_reason for each in done] == ["error", "stop"]
    assert (
        f"max_seq_len is 512: shorten it, or raise the limit to {length} or more" in capsys.readouterr().err
    )
    done = llm.batch_generate(model, checkpoint.tokenizer, prompts, prefill_step=512, max_seq_len=length)
    assert "error" not in [each.finish_reason for each in done]


@pytest.mark.parametrize(
    ("argv", "model"),
    [("", "default"), ("a", "a"), ("--model a", "a"), ("--port 1 a", "a"), ("a --port 1", "a")],
)
def test_serve_takes_the_model_without_its_flag(argv, model):
    assert parsed(*argv.split()).model == model


@pytest.mark.parametrize(
    ("words", "is_chunked"),
    [
        (["--enable-chunked-prefill", "true"], True),
        (["--enable-chunked-prefill", "false"], False),
        (["--enable-chunked-prefill=False"], False),
    ],
)
def test_a_switch_may_have_a_value(words, is_chunked):
    settings = parsed("a", *words, "--port", "1")
    assert (settings.model, settings.engine.config.enable_chunked_prefill) == ("a", is_chunked)


def test_the_list_of_commands_imports_none_of_them():
    script = (
        "import sys; from tiny_llm_lab.cli import dispatch; dispatch.main([]); "
        "modules = dispatch.COMMANDS.modules.values(); "
        "heavy = {'numpy', 'rich', 'transformers', 'matplotlib', 'pytest', *modules}; "
        "print(sorted(heavy & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


PAGE = (Path(__file__).parents[2] / "docs" / "from-vllm.md").read_text()


def flags_of(cell):
    return re.findall(r"`(-[\w-]+)`", cell)


SECTION = PAGE.partition("## Something else")[2].partition("\n## ")[0]


def test_the_page_names_every_backend_and_dataset_of_the_client():
    parser = ArgumentParser(add_help=False)
    add_server_flags(parser)
    add_load_flags(parser)
    section = PAGE.partition("## The benchmark client")[2]
    for flag in ("--backend", "--dataset-name"):
        row = re.search(rf"^\| `{flag}` \| (.+) \|$", section, re.MULTILINE)
        choices = parser._option_string_actions[flag].choices
        assert row and choices and all(f"`{each}`" in row[1] for each in choices)


def test_serve_has_the_flags_that_the_page_calls_the_same_and_no_other_of_vllms():
    parser = ArgumentParser(add_help=False)
    command.add_arguments(parser)
    known = set(parser._option_string_actions)
    same = flags_of(PAGE.partition("## Something else")[0].partition("## The same")[2])
    assert same and set(same) <= known
    assert not set(flags_of(SECTION)) & known
