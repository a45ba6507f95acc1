"""The process around a command: interrupts, closed and full streams, encodings, and words about bad usage."""

import importlib
import os
import re
import sys
from argparse import ArgumentParser
from pathlib import Path

import pytest
from tests.helpers.processes import finished

from tiny_llm_lab import load_checkpoint, load_solution
from tiny_llm_lab.cli import dispatch as cli
from tiny_llm_lab.cli.commands import COMMANDS
from tiny_llm_lab.measure.load.command import add_load_flags, add_server_flags
from tiny_llm_lab.serving.server import command
from tiny_llm_lab.serving.server.command import FIRST_FLAGS, model_settings
from tiny_llm_lab.types.packages import PACKAGES
from tools.commands import EVERY

ROOT = Path(__file__).parents[2]
# Buffered, as for most people: then a write fails when it is flushed, and not where it is made.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
ENVIRONMENT |= {"PYTHONPATH": str(ROOT / "src")}
TIMEOUT_S = 240  # longer than any of these takes on a busy machine
ANSWER = ("main", "--prompt", "Hello", "--max-tokens", "4")
TRACE = ("trace", "--preset", "two-prompts")


def shell(words, redirection, **environment):
    """`words` as a command of a shell, with its `redirection`."""
    script = f'exec "$@" {redirection}'
    return finished(
        ["/bin/sh", "-c", script, "sh", sys.executable, "-m", "tiny_llm_lab", *words],
        timeout=TIMEOUT_S,
        cwd=ROOT,
        env=ENVIRONMENT | environment,
    )


# Ctrl-C arrives while a module is being imported: sent by the import itself, at the same place each time.
_INTERRUPTED_IMPORT = """
import os, runpy, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
wanted = sys.argv.pop(1)
class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == wanted:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupt())
runpy.run_module("tiny_llm_lab", run_name="__main__", alter_sys=True)
"""


@pytest.mark.parametrize("module", ["argparse", "importlib.metadata", "mlx", "tiny_llm_lab.cli.main"])
def test_ctrl_c_during_imports_is_one_line(module):
    done = finished(
        [sys.executable, "-c", _INTERRUPTED_IMPORT, module, *ANSWER], timeout=TIMEOUT_S, env=ENVIRONMENT
    )
    assert (done.returncode, done.stderr, done.stdout) == (130, "interrupted\n", "")


@pytest.mark.parametrize("words", [(), TRACE])
def test_a_full_disk_is_one_line(words):
    done = shell(words, "> /dev/full")
    line = "error: cannot write to stdout: No space left on device\n"
    assert (done.returncode, done.stderr) == (1, line)


@pytest.mark.parametrize("words", [(), ("stubs", "--help")])
def test_a_reader_that_leaves_is_no_crash(words):
    assert shell(words, "| true").stderr == ""


def test_closed_streams_are_no_crash():
    done = shell(TRACE, ">&-")
    assert (done.returncode, done.stderr) == (1, "error: cannot write to stdout: Bad file descriptor\n")
    done = shell(("main", "--prompt", "-"), "<&-")
    assert (done.returncode, done.stdout) == (2, "") and "the prompt is empty" in done.stderr


@pytest.mark.parametrize("words", [TRACE, ("batch-main", "--max-tokens", "2")])
def test_a_terminal_of_ascii_gets_what_it_can_show(words):
    done = shell(words, "", PYTHONIOENCODING="ascii", TINY_LLM_KERNELS="auto")
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr and done.stdout.isascii() and done.stdout


@pytest.mark.parametrize("source", ["argument", "stdin"])
def test_bytes_that_are_not_utf_8_are_one_line(source, tmp_path):
    path = tmp_path / "prompt"
    path.write_bytes(b"caf\xe9\n")
    for locale in ("C", "C.UTF-8"):
        if source == "stdin":
            done = shell(("main", "--prompt", "-"), f"< {path}", LC_ALL=locale)
        else:
            script = f'exec "$@" --prompt "$(cat {path})"'
            done = finished(
                ["/bin/sh", "-c", script, "sh", sys.executable, "-m", "tiny_llm_lab", "main"],
                timeout=TIMEOUT_S,
                env=ENVIRONMENT | {"LC_ALL": locale},
            )
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith("error: ") and "is not UTF-8 text" in done.stderr
        assert len(done.stderr.splitlines()) == 1


def test_help_says_how_it_is_called(capsys):
    for name in ("main", "batch-main"):
        assert cli.main([name, "--help"]) == 0
        out = capsys.readouterr().out
        assert out.startswith(f"usage: ./pdmw run {name} ")
        assert out.split("examples:")[1].count(f"./pdmw run {name} ") == 2


def test_the_list_says_what_the_first_do_and_names_the_rest(capsys):
    assert cli.main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    names = [line.split()[2] for line in lines if line.startswith("  ./pdmw run ")]
    assert names == list(COMMANDS.first) and len(names) == 13 and names[0] == "main"
    assert any(line.endswith(f"  {COMMANDS.load('lab').HELP}") for line in lines)
    more, others = (line.partition(": ")[2].split(", ") for line in lines[13:-1])
    assert sorted([*names, *more]) == sorted(COMMANDS)
    assert set(others) == set(EVERY) - set(COMMANDS)
    assert "--help" in lines[-1]


def test_help_lists_the_first_flags_of_serve_and_help_all_every_one(capsys):
    parser = COMMANDS.parser("serve")
    every = {each.option_strings[0] for each in parser._actions if each.option_strings}
    assert len(FIRST_FLAGS) == len(set(FIRST_FLAGS)) == 25 and set(FIRST_FLAGS) < every
    for flag, listed in (("--help", {"-h", "--help-all", *FIRST_FLAGS}), ("--help-all", every)):
        assert cli.main(["serve", flag]) == 0
        options = capsys.readouterr().out.partition("\noptions:")[2]
        assert set(re.findall(r"^  (-[\w-]+)", options, re.MULTILINE)) == listed
    assert cli.main(["serve", "--banana"]) == 2
    assert capsys.readouterr().err.endswith(": ./pdmw run serve --help-all lists the flags\n")


def test_a_syntax_error_of_the_learner_is_its_file_and_line(tmp_path, monkeypatch, capsys):
    package = tmp_path / "package_with_a_slip"
    package.mkdir()
    (package / "__init__.py").write_text("x = 1\ndef f(:\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(PACKAGES, "mine", package.name)
    assert cli.main(["main", "--solution", "mine"]) == 2
    assert capsys.readouterr().err.startswith("error: package_with_a_slip/__init__.py:2: invalid syntax")


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
    done = finished([sys.executable, "-c", script], check=True)
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
