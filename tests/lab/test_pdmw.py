"""Which commands `./pdmw run` starts itself, and that they then see what PDM would show them."""

import hashlib
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = """
[project]
name = "x"
[tool.pdm.scripts]
ours = { cmd = "python -m ours first", help = "x" }
quoted = { cmd = "python -c 'pass'" }
shell = { shell = "python -m ours" }
other = { cmd = "printenv" }
plain = "python -m ours"
wrapped = { cmd = "python -m ours" }
pre_wrapped = { cmd = "python -m ours" }
"""
SAYS = """#!/bin/sh
echo "OURS $*"
echo "$PWD|$PDM_RUN_CWD|$VIRTUAL_ENV|$PDM_PROJECT_ROOT|$PATH"
"""
FAKE_PDM = "import sys\n\ndef main():\n    print('PDM', *sys.argv[1:])\n"


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A folder in which ./pdmw finds an environment that is in step with its lock, and no real PDM."""
    shutil.copy(ROOT / "pdmw", tmp_path)
    (tmp_path / "pyproject.toml").write_text(PROJECT)
    (tmp_path / "pdm.lock").write_text("")
    functions = (tmp_path / "pdmw").read_text("utf-8").rpartition("\ntry:")[0]
    names: dict[str, object] = {"__file__": str(tmp_path / "pdmw"), "__name__": "pdmw"}
    # A process of its own would be the same, but for the handler of Ctrl-C, which this leaves alone.
    exec(compile(functions.replace("_signal.signal(_signal.SIGINT, leave)", "pass"), "pdmw", "exec"), names)
    pdm = Path(str(names["PDM_DIR"]))
    (pdm / "pdm").mkdir(parents=True)
    (pdm / "pdm" / "core.py").write_text(FAKE_PDM)
    (tmp_path / ".pdmw" / "python").symlink_to(sys.executable)
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(SAYS)
    python.chmod(0o755)
    project = tomllib.loads(PROJECT)["project"]
    digest = hashlib.sha256(repr(project).encode()).hexdigest()
    (tmp_path / ".venv" / ".pdmw").write_text("\0".join([str(tmp_path), sys.version, "cpu", digest]))
    return tmp_path


def pdmw(clone: Path, *args: str) -> list[str]:
    (clone / "inner").mkdir(exist_ok=True)
    environment = {"PATH": os.environ["PATH"], "HOME": str(clone)}
    done = subprocess.run(
        [sys.executable, "-ES", clone / "pdmw", *args],
        cwd=clone / "inner",
        env=environment,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def test_our_own_commands_are_started_without_pdm(clone: Path) -> None:
    said, seen = pdmw(clone, "run", "ours", "--", "-k", "a b", "${HOME}", "--help")
    assert said == "OURS -m ours first -- -k a b ${HOME} --help"
    scripts = f"{clone}/.venv/bin"
    path = f"{scripts}:{os.environ['PATH']}:{scripts}"
    assert seen == f"{clone}|{clone}/inner|{clone}/.venv|{clone}|{path}"


@pytest.mark.parametrize("name", ["quoted", "shell", "other", "plain", "wrapped", "python", "--list"])
def test_what_pdm_does_more_than_start_is_left_to_it(clone: Path, name: str) -> None:
    assert pdmw(clone, "run", name, "-c", "pass") == [f"PDM run {name} -c pass"]


def test_other_commands_are_pdms(clone: Path) -> None:
    assert pdmw(clone, "lock", "--check") == ["PDM lock --check"]
    assert pdmw(clone, "ours") == ["PDM ours"]
    assert pdmw(clone, "run") == ["PDM run"]


def test_every_command_of_the_project_is_started_without_pdm() -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["pdm"]["scripts"]
    assert all(script["cmd"] == f"python -m tiny_llm_lab {name}" for name, script in scripts.items())
    assert all(set(script) == {"cmd", "help"} for script in scripts.values())
