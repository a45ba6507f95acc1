"""The process around a command: interrupts, closed and full streams, encodings, and words about bad usage."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tiny_llm_lab.cli import dispatch as cli
from tiny_llm_lab.cli.commands import COMMANDS
from tiny_llm_lab.serving.server.command import FIRST_FLAGS
from tiny_llm_lab.types.packages import PACKAGES
from tools.commands import EVERY

Capture = pytest.CaptureFixture[str]
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
    return subprocess.run(
        ["/bin/sh", "-c", script, "sh", sys.executable, "-m", "tiny_llm_lab", *words],
        capture_output=True,
        text=True,
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
    done = subprocess.run(
        [sys.executable, "-c", _INTERRUPTED_IMPORT, module, *ANSWER],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        env=ENVIRONMENT,
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
            done = subprocess.run(
                ["/bin/sh", "-c", script, "sh", sys.executable, "-m", "tiny_llm_lab", "main"],
                capture_output=True,
                text=True,
                timeout=TIMEOUT_S,
                env=ENVIRONMENT | {"LC_ALL": locale},
            )
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith("error: ") and "is not UTF-8 text" in done.stderr
        assert len(done.stderr.splitlines()) == 1


def test_help_says_how_it_is_called(capsys):
    for command in ("main", "batch-main"):
        assert cli.main([command, "--help"]) == 0
        out = capsys.readouterr().out
        assert out.startswith(f"usage: ./pdmw run {command} ")
        assert out.split("examples:")[1].count(f"./pdmw run {command} ") == 2


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
