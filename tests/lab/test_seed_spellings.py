"""What readers of vLLM's documentation, and of the outlines that this course follows, type."""

import importlib
import re
import subprocess
import sys
from argparse import ArgumentParser
from pathlib import Path

import pytest

from tiny_llm_lab import load_checkpoint, load_solution
from tiny_llm_lab.cli import dispatch as cli
from tiny_llm_lab.measure.load.command import add_load_flags, add_server_flags
from tiny_llm_lab.serving.server import command
from tiny_llm_lab.serving.server.command import model_settings

Capture = pytest.CaptureFixture[str]


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


MODELS = [("", "default"), ("a", "a"), ("--model a", "a"), ("--port 1 a", "a"), ("a --port 1", "a")]


@pytest.mark.parametrize(("argv", "model"), MODELS)
def test_serve_takes_the_model_without_its_flag(argv, model):
    assert parsed(*argv.split()).model == model


SWITCHES = [
    (["--enable-chunked-prefill", "true"], True),
    (["--enable-chunked-prefill", "false"], False),
    (["--enable-chunked-prefill=False"], False),
]


@pytest.mark.parametrize(("words", "is_chunked"), SWITCHES)
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
