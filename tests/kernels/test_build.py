"""The kernels are compiled once, by content, and what goes wrong is said in a line."""

import ctypes
import errno
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import mlx.core as mx
import pytest
from tests.helpers.processes import finished
from tests.kernels.compilers import fake_compiler

from tiny_llm_lab.runtime.native.compiling import build as building
from tiny_llm_lab.runtime.native.compiling.build import CacheError, CompileError, Library, build
from tiny_llm_lab.runtime.native.compiling.isa import ISAS
from tiny_llm_lab.types import UserError
from tools.checking import for_mac

SOURCE = '#include "number.h"\nextern "C" int number() { return NUMBER; }\n'


@pytest.fixture
def library(tmp_path, monkeypatch):
    """A small library with a header, and a cache of its own."""
    monkeypatch.setenv("TINY_LLM_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / "number.cpp").write_text(SOURCE)
    (folder / "number.h").write_text("#define NUMBER 7\n")
    return Library("number.so", ((folder / "number.cpp", ("-O0",)),), what="a number")


def source_of(library):
    return library.sources[0][0]


def test_the_second_time_nothing_is_compiled(library, capfd, monkeypatch):
    first = build(library)
    assert capfd.readouterr().err == "compiling a number (once) ...\n"
    before = first.stat()
    monkeypatch.setattr(building, "_compile", lambda *args: pytest.fail("compiled again"))
    assert build(library) == first
    assert first.stat().st_mtime_ns == before.st_mtime_ns
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("keep", [0, 1000, 0.5, 2.0])
@pytest.mark.parametrize("pattern", ["*.so", "*.o", "*"])
def test_what_is_cut_short_is_made_again(library, pattern, keep):
    """The system ends a process that reads behind the end of a mapped library: it must not be loaded."""
    made = build(library)
    size = made.stat().st_size
    for path in [path for path in made.parents[1].rglob(pattern) if path.is_file()]:
        os.truncate(path, int(keep * path.stat().st_size) if isinstance(keep, float) else keep)
    if pattern == "*.o":
        made.unlink()
    assert build(library) == made
    assert made.stat().st_size == size
    assert ctypes.CDLL(str(made)).number() == 7


def test_it_is_on_the_disk_before_it_has_its_name(library, monkeypatch):
    """A loss of power leaves a file under its name only with all of its content."""
    done, replace, fsync = [], Path.replace, os.fsync
    monkeypatch.setattr(os, "fsync", lambda held: (done.append(os.fstat(held).st_ino), fsync(held)))
    monkeypatch.setattr(Path, "replace", lambda path, to: (done.append(to), replace(path, to))[1])
    made = build(library)
    assert done.index(made.stat().st_ino) < done.index(made)


@pytest.mark.parametrize(("age_s", "stays"), [(2 * 86400, False), (60, True)])
def test_what_a_killed_compiler_left_is_removed_once_it_is_old(library, tmp_path, age_s, stays):
    left = tmp_path / "cache" / "native" / "tmpabc"
    left.mkdir(parents=True)
    (left / "0.o").write_text("half")
    then = time.time() - age_s
    os.utime(left, (then, then))
    build(library)
    assert left.exists() == stays
    assert [path for path in left.parent.glob("tmp*") if path != left] == []


def test_whatever_goes_into_it_makes_another(library):
    paths = {build(library)}
    source_of(library).write_text(SOURCE + "\n")
    paths.add(build(library))
    (source_of(library).parent / "number.h").write_text("#define NUMBER 8\n")
    paths.add(build(library))
    paths.add(build(Library(library.name, ((source_of(library), ("-O1",)),))))
    paths.add(build(Library(library.name, library.sources, ("-lm",))))
    assert len(paths) == 5
    source_of(library).write_text(SOURCE)
    (source_of(library).parent / "number.h").write_text("#define NUMBER 7\n")
    assert build(library) in paths


def test_nothing_half_made_is_left(library, tmp_path):
    source_of(library).write_text("int broken( {\n")
    with pytest.raises(CompileError):
        build(library)
    files = [path for path in (tmp_path / "cache" / "native").rglob("*") if path.is_file()]
    assert [path.suffix for path in files] == [".lock"]


def test_a_compile_error_names_its_place(library):
    source_of(library).write_text(SOURCE + "int wrong() { return missing_name; }\n")
    with pytest.raises(UserError, match=r"number\.cpp:3:.*missing_name"):
        build(library)


def test_a_full_disk_is_one_line(library, tmp_path, monkeypatch):
    words = f"fatal error: error writing to x.s: {os.strerror(errno.ENOSPC)}"
    monkeypatch.setenv("CXX", fake_compiler(tmp_path, "full", fails=words))
    with pytest.raises(
        CacheError, match=r"^[^\n]*cannot write it .*: free some space, or set TINY_LLM_CACHE$"
    ):
        build(library)


def test_another_compiler_makes_another(library, tmp_path, monkeypatch):
    paths = []
    for version in ("12.2.0", "13.1.0", "12.2.0"):
        monkeypatch.setenv("CXX", fake_compiler(tmp_path / version, version))
        building.compiler_version.cache_clear()  # an upgrade is seen by the next process
        paths.append(build(library))
    assert paths[0] == paths[2] != paths[1]
    assert paths[0].stat().st_ino != paths[1].stat().st_ino


# Compiling begins when both processes have asked for the version, and takes long enough for both to look.
SLOW = """
for i in $(seq 100); do [ "$(grep -c version "$LOG")" -ge 2 ] && break; sleep 0.1; done
sleep 0.5
"""
PROGRAM = """
import sys
from pathlib import Path
from tiny_llm_lab.runtime.native.compiling.build import Library, build
print(build(Library("number.so", ((Path(sys.argv[1]), ("-O0",)),), what="a number")))
"""


def test_two_processes_at_once_compile_once(library, tmp_path, monkeypatch):
    log = tmp_path / "log"
    monkeypatch.setenv("LOG", str(log))
    monkeypatch.setenv("CXX", fake_compiler(tmp_path, "slow", before=SLOW))
    command = [sys.executable, "-c", PROGRAM, str(source_of(library))]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = [process.communicate(timeout=120)[0].strip() for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert said[0] == said[1]
    asked = log.read_text().splitlines()
    assert asked.count("version") == 2
    assert asked.count("compile") == 2, "one source and one library, by one of the two"


def test_the_files_are_counted_on_a_terminal(library, capfd, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    other = source_of(library).with_name("other.cpp")
    other.write_text("int other() { return 1; }\n")
    build(Library("two.so", (*library.sources, (other, ())), what="two files"))
    line = "compiling two files (once, up to a minute) ..."
    assert capfd.readouterr().err == f"{line}\r{line} 1 of 2\r{line} 2 of 2\n"


def test_on_a_mac_the_bridge_says_where_mlx_is():
    path = f"-Wl,-rpath,{Path(mx.__file__).parent / 'lib'}"
    assert path not in building.binding_library().link
    assert path in building.binding_library(is_for_mac=True).link


def test_the_macs_compiler_knows_each_architecture():
    asked = [flag for isa in ISAS for flag in isa.flags if flag.startswith("-march=arm")]
    assert asked and all(f'"{flag}": "-mcpu=apple_m' in for_mac._CXX for flag in asked)


def test_without_a_registry_nothing_is_built_for_a_mac_and_it_is_said(tmp_path):
    env = os.environ | {"TINY_LLM_CACHE": str(tmp_path), "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": ""}
    command = [sys.executable, "-m", "tools.checking.for_mac"]
    done = finished(command, env=env)
    assert done.returncode == 1 and done.stdout.startswith("cannot build for a Mac: pip install needs"), done


def test_compiling_stops_the_clock_of_a_test():
    signal.setitimer(signal.ITIMER_REAL, 100, 50)
    try:
        with building._alarm_stopped():
            assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
        left, every = signal.getitimer(signal.ITIMER_REAL)
        assert 0 < left <= 100 and every == 50
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def test_a_compiler_that_is_asked_its_version_leaves_nothing(tmp_path, monkeypatch):
    fake_compiler(tmp_path / "own", "zig")
    folder = tmp_path / "cwd"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("CXX", "../own/c++")
    building.compiler_version.cache_clear()
    assert building.compiler_version(building.compiler()) == "fake zig\n"
    assert not list(folder.iterdir())


def test_a_compiler_with_a_space_in_its_path(library, tmp_path, monkeypatch):
    folder = tmp_path / "my tools"
    folder.mkdir()
    (folder / "c++").symlink_to(shutil.which("c++") or building.compiler())
    monkeypatch.setenv("CXX", str(folder / "c++"))
    assert build(library).exists()
