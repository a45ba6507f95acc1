"""What a clone promises before its code runs: no foreign addresses, commands that exist, locks that fit."""

import os
import re
import shutil
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.tags import compatible_tags, cpython_tags, mac_platforms
from packaging.utils import parse_wheel_filename
from tests.helpers.processes import finished

from tiny_llm_lab.course.record.record import RECORD

ROOT = Path(__file__).resolve().parents[2]
PLATFORMS = {"manylinux_2_35_x86_64", "manylinux_2_35_aarch64"} | {f"macos_{n}_0_arm64" for n in (14, 15, 26)}
# The wheels for Macs that the index had of this version on 2026-11-24; for another version, look again.
INDEX = {
    "mlx": ("0.32.4", [f"cp{n}-cp{n}" for n in range(310, 316)] + [f"cp{n}-cp{n}t" for n in (313, 314, 315)]),
    "mlx-metal": ("0.32.4", ["py3-none"]),
}
# In pieces, so that this file does not hold what it forbids.
REGISTRIES = ["pypi" + ".org", "pythonhosted" + ".org", "npmjs" + ".org", "download." + "pytorch"]
HOME = re.compile(r"(?:/home|/Users)/\w+/|/roo[t]/")


def toml(name):
    return tomllib.loads((ROOT / name).read_text("utf-8"))


def tracked_texts():
    names = subprocess.check_output(["git", "ls-files", "-z"], cwd=ROOT, text=True).split("\0")
    texts = {}
    for name in filter(None, names):
        path = ROOT / name
        if path.is_file() and b"\0" not in (data := path.read_bytes()):
            texts[name] = data.decode("utf-8", errors="replace")
    return texts


def test_no_file_names_a_registry_or_a_home_folder():
    found = [
        f"{name}:{number}: {line.strip()[:80]}"
        for name, text in tracked_texts().items()
        for number, line in enumerate(text.splitlines(), 1)
        if any(host in line for host in REGISTRIES) or HOME.search(line)
    ]
    assert not found, "\n".join(found)


def test_no_file_installs_the_name_from_an_index_where_it_is_another_projects():
    by_name = re.compile(r"pip install [\"']?tiny-llm\b")
    assert [name for name, text in tracked_texts().items() if by_name.search(text)] == []


def test_lock_covers_the_platforms_and_pythons_we_promise():
    targets = toml("pdm.lock")["metadata"]["targets"]
    assert {target["platform"] for target in targets} == PLATFORMS
    promised = set(toml("pyproject.toml")["project"]["requires-python"].split(","))
    assert all(set(target["requires_python"].split(",")) == promised for target in targets)


@pytest.mark.parametrize("macos", [(14, 0), (14, 8), (15, 0), (15, 7), (26, 0), (26, 2), (26, 3)])
@pytest.mark.parametrize("python", [(3, minor) for minor in range(11, 15)])
def test_a_mac_gets_the_build_of_mlx_for_its_macos(macos, python):
    """Only the build for macOS 26 uses the matrix units of an M5."""
    platforms = list(mac_platforms(macos, "arm64"))
    tags = [*cpython_tags(python, platforms=platforms), *compatible_tags(python, platforms=platforms)]
    order = {tag: rank for rank, tag in enumerate(tags)}

    def best(files):
        wheels = {file: parse_wheel_filename(file)[3] & order.keys() for file in files}
        return min(filter(wheels.get, wheels), key=lambda wheel: min(order[tag] for tag in wheels[wheel]))

    for name, (version, kinds) in INDEX.items():
        package = next(each for each in toml("pdm.lock")["package"] if each["name"] == name)
        assert package["version"] == version, "INDEX has the files of another version"
        start = f"{name.replace('-', '_')}-{version}"
        there = [f"{start}-{kind}-macosx_{n}_0_arm64.whl" for kind in kinds for n in (14, 15, 26)]
        locked = best([file["file"] for file in package["files"]])
        assert locked == best(there) and locked.endswith(f"macosx_{macos[0]}_0_arm64.whl")


@pytest.mark.parametrize("name", ["pdm.lock", "pdm.cuda.lock"])
def test_lock_has_hashes_and_no_addresses(name):
    for package in toml(name)["package"]:
        assert package["files"], f"{package['name']} has no file"
        for file in package["files"]:
            assert set(file) == {"file", "hash"}, f"{package['name']}: {file}"


def test_both_locks_agree():  # CONTRIBUTING.md has the two commands
    main, cuda = toml("pdm.lock"), toml("pdm.cuda.lock")
    assert main["metadata"]["content_hash"] == cuda["metadata"]["content_hash"]
    versions = {package["name"]: package["version"] for package in main["package"]}
    cuda_versions = {package["name"]: package["version"] for package in cuda["package"]}
    assert cuda_versions | versions == versions | cuda_versions


def test_a_learners_record_is_for_git_to_ignore():
    assert f"{RECORD.parent}/" in (ROOT / ".gitignore").read_text("utf-8").splitlines()


def test_entry_points_are_executable():
    command = ["git", "ls-files", "--stage", "pdmw", ".ci/run", ".ci/mac"]
    listing = subprocess.check_output(command, cwd=ROOT, text=True)
    assert [line.split()[0] for line in listing.splitlines()] == ["100755"] * 3


def test_ci_runs_a_command_that_the_readme_names():
    lines = (ROOT / ".ci" / "run").read_text("utf-8").splitlines()
    first, second = (line for line in lines if line.startswith("./pdmw run "))
    assert f"\n{first}\n" in (ROOT / "README.md").read_text("utf-8")
    # The tests have just run.
    assert second == "./pdmw run check --no-tests"


def test_ci_uses_no_action_of_node_20():
    least = {"checkout": 5, "setup-python": 6, "cache": 5, "upload-artifact": 6, "configure-pages": 6}
    least |= {"upload-pages-artifact": 5, "deploy-pages": 5}
    texts = [path.read_text("utf-8") for path in (ROOT / ".github" / "workflows").glob("*.yml")]
    used = {match for text in texts for match in re.findall(r"uses: actions/([\w-]+)@v(\d+)", text)}
    assert used and all(int(number) >= least[name] for name, number in used)


def test_the_cpu_of_hosted_macs_is_required_and_metal_is_not():
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text("utf-8"))["jobs"]
    mac = jobs["macos"]
    assert mac["strategy"]["matrix"] == {"os": ["macos-15", "macos-26"], "leg": ["cpu", "metal"]}
    assert mac["continue-on-error"] == "${{ matrix.leg == 'metal' }}"
    assert mac["steps"][-1]["run"] == ".ci/mac ${{ matrix.leg }}"
    assert "cpu)\n        export TINY_LLM_DEVICE=cpu" in (ROOT / ".ci" / "mac").read_text("utf-8")


def test_the_test_files_that_ci_and_a_report_name_are_there():
    programs = [*(ROOT / ".ci").iterdir(), *(ROOT / "src" / "tiny_llm_lab" / "measure").rglob("*.py")]
    named = {each for path in programs for each in re.findall(r"tests/\w+/\w+\.py", path.read_text("utf-8"))}
    assert "tests/week_3/test_day_6_engine.py" in named
    assert [each for each in sorted(named) if not (ROOT / each).exists()] == []


def test_pdmw_without_python_names_the_cure(tmp_path):
    folder = tmp_path / "a new folder"
    folder.mkdir()
    shutil.copy(ROOT / "pdmw", folder)
    broken = tmp_path / "bin" / "python3"  # as a version manager's shim that points nowhere
    broken.parent.mkdir()
    broken.write_text("#!/bin/sh\nexit 127\n")
    broken.chmod(0o755)
    run = finished(
        ["/bin/sh", folder / "pdmw", "run", "main"], env={"PATH": str(broken.parent), "HOME": os.devnull}
    )
    assert (run.returncode, run.stdout) == (2, "")
    assert re.fullmatch(r"pdmw: no Python from 3\.11 .*install one.*\n", run.stderr)


def test_an_interrupt_while_pdmw_starts_is_one_line(tmp_path):
    shutil.copy(ROOT / "pdmw", tmp_path)
    # What a script imports is looked for beside it first.
    (tmp_path / "contextlib.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    run = finished([sys.executable, "-ES", tmp_path / "pdmw"], preexec_fn=_hears_interrupts)
    assert (run.returncode, run.stdout, run.stderr) == (130, "", "interrupted\n")


def _hears_interrupts():
    # A shell tells what it runs in the background to ignore them.
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _with_interrupt_pending():
    _hears_interrupts()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize("what", ["PDM", "the list of commands"])
def test_what_pdmw_starts_answers_an_interrupt_of_before(what):
    found = re.search(r'PDM_MAIN = """\\\n(.*?)"""', (ROOT / "pdmw").read_text("utf-8"), re.DOTALL)
    assert found
    program = ["-c", found[1].replace("\\\\n", "\\n")] if what == "PDM" else ["-m", "tiny_llm_lab"]
    run = finished([sys.executable, *program], preexec_fn=_with_interrupt_pending)
    assert (run.returncode, run.stdout, run.stderr) == (130, "", "interrupted\n")
