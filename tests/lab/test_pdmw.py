"""Which commands `./pdmw run` starts itself, and that they then see what PDM would show them."""

import hashlib
import os
import shutil
import sys
import tomllib
import types
from pathlib import Path

import pytest
from tests.helpers.processes import finished

from tools.commands import EVERY

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
def clone(tmp_path):
    """A folder in which ./pdmw finds an environment that is in step with its lock, and no real PDM."""
    shutil.copy(ROOT / "pdmw", tmp_path)
    (tmp_path / "pyproject.toml").write_text(PROJECT)
    (tmp_path / "pdm.lock").write_text("")
    pdm = Path(functions(tmp_path)["PDM_DIR"])
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


def functions(folder):
    """What pdmw defines, as a program in `folder`."""
    text = (folder / "pdmw").read_text("utf-8").rpartition("\ntry:")[0]
    names = {"__file__": str(folder / "pdmw"), "__name__": "pdmw"}
    # A process of its own would be the same, but for the handler of Ctrl-C, which this leaves alone.
    exec(compile(text.replace("_signal.signal(_signal.SIGINT, leave)", "pass"), "pdmw", "exec"), names)
    return names


def pdmw(clone, *args):
    (clone / "inner").mkdir(exist_ok=True)
    environment = {"PATH": os.environ["PATH"], "HOME": str(clone)}
    done = finished([sys.executable, "-ES", clone / "pdmw", *args], cwd=clone / "inner", env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def test_our_own_commands_are_started_without_pdm(clone):
    said, seen = pdmw(clone, "run", "ours", "--", "-k", "a b", "${HOME}", "--help")
    assert said == "OURS -m ours first -- -k a b ${HOME} --help"
    scripts = f"{clone}/.venv/bin"
    path = f"{scripts}:{os.environ['PATH']}:{scripts}"
    assert seen == f"{clone}|{clone}/inner|{clone}/.venv|{clone}|{path}"


@pytest.mark.parametrize("name", ["quoted", "shell", "other", "plain", "wrapped", "python", "--list"])
def test_what_pdm_does_more_than_start_is_left_to_it(clone, name):
    assert pdmw(clone, "run", name, "-c", "pass") == [f"PDM run {name} -c pass"]


def test_other_commands_are_pdms(clone):
    assert pdmw(clone, "lock", "--check") == ["PDM lock --check"]
    assert pdmw(clone, "ours") == ["PDM ours"]


@pytest.mark.parametrize("args", [(), ("run",)])
def test_without_a_name_the_commands_are_listed(clone, args):
    assert pdmw(clone, *args)[0] == "OURS -m tiny_llm_lab"


@pytest.mark.parametrize("name", ["ourss", "our", "plan"])
def test_a_command_without_run_gets_the_nearest_one(clone, name):
    done = finished([sys.executable, "-ES", clone / "pdmw", name])
    near = {"plan": "plain"}.get(name, "ours")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"pdmw: there is no command {name!r}: did you mean ./pdmw run {near}?\n"


def test_a_misspelt_command_gets_the_nearest_one(clone):
    shutil.copy(clone / ".venv" / "bin" / "python", clone / ".venv" / "bin" / "ousr")  # as tset is for test
    for name, says in (("ourss", ": did you mean ours?"), ("ousr", ": did you mean ours?"), ("zzz", ";")):
        done = finished([sys.executable, "-ES", clone / "pdmw", "run", name])
        says = f"there is no command '{name}'{says} ./pdmw lists the commands\n"
        assert (done.returncode, done.stdout, done.stderr) == (2, "", f"pdmw: {says}")


def test_every_command_of_the_project_is_started_without_pdm():
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["pdm"]["scripts"]
    packages = {name: EVERY.modules[name].partition(".")[0] for name in EVERY}
    assert {name: script["cmd"] for name, script in scripts.items()} == {
        name: f"python -m {package} {name}" for name, package in packages.items()
    }
    assert all(set(script) == {"cmd", "help"} for script in scripts.values())


# A Python that says of itself what one on this Mac would say; it is asked with -c by the lines for sh.
ON_A_MAC = """#!/bin/sh
[ "$1" = -c ] || exec {python} "$@"
exec {python} -c "import os, sys, types
sys.platform, sys.version_info = 'darwin', (3, 13)
os.uname = lambda: types.SimpleNamespace(machine='{machine}', release='25.2.0')
$2"
"""


@pytest.mark.parametrize("others", [[], ["arm64"]])
def test_a_python_for_intel_is_left_for_one_of_apple_silicon(others, tmp_path):
    (tmp_path / "bin").mkdir()
    shutil.copy(ROOT / "pdmw", tmp_path)
    base = getattr(sys, "_base_executable", None) or sys.executable  # that of a .venv has no pip
    for name, machine in zip(["python3.13", "python3.12"], ["x86_64", *others], strict=False):
        path = tmp_path / "bin" / name
        path.write_text(ON_A_MAC.format(python=base, machine=machine))
        path.chmod(0o755)
    lines = (tmp_path / "pdmw").read_text("utf-8").replace("main(sys.argv[1:])", "print(sys.argv[1:])")
    (tmp_path / "pdmw").write_text(lines)
    command, path = ["/bin/sh", str(tmp_path / "pdmw"), "run"], str(tmp_path / "bin")
    done = finished(command, env={"PATH": path})
    if others:
        assert (done.returncode, done.stdout) == (0, "['run']\n"), done.stderr
    else:
        assert done.returncode == 2 and done.stderr.count("\n") == 1
        assert done.stderr.startswith("pdmw: python3.13 is a Python for Intel Macs")


@pytest.mark.parametrize(("release", "is_refused"), [("22.6.0", True), ("23.0.0", False), ("25.2.0", False)])
def test_macos_before_14_is_refused_in_a_line(release, is_refused, clone, monkeypatch, capsys):
    names = functions(clone)
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(os, "uname", lambda: types.SimpleNamespace(release=release))
    monkeypatch.setattr(os, "execv", lambda *_: None)
    monkeypatch.setenv("PDM_PROJECT", "")
    monkeypatch.setenv("PDM_CHECK_UPDATE", "")
    monkeypatch.setattr(names["_signal"], "pthread_sigmask", lambda *_: None)
    if is_refused:
        with pytest.raises(SystemExit):
            names["main"](["--version"])
        assert capsys.readouterr().err == (
            "pdmw: MLX needs macOS 14 or newer, and this one is older; update macOS\n"
        )
    else:
        names["main"](["--version"])
        assert names["stamp"]()[1] == f"{sys.version} Darwin {release[:2]}"
