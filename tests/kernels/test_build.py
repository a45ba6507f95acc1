"""The kernels are compiled once, by content, and what goes wrong is said in a line."""

import shutil

import mlx.core as mx
import pytest

from tiny_llm_lab import native
from tiny_llm_lab.native import build as building
from tiny_llm_lab.native import isa
from tiny_llm_lab.native.build import CompileError, Library, NoCompilerError, build
from tiny_llm_lab.types import UserError

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
    assert not [path for path in (tmp_path / "cache" / "native").rglob("*") if path.is_file()]


def test_a_compile_error_names_its_place(library):
    source_of(library).write_text(SOURCE + "int wrong() { return missing_name; }\n")
    with pytest.raises(UserError, match=r"number\.cpp:3:.*missing_name"):
        build(library)


def test_a_cache_that_cannot_be_written(library, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TINY_LLM_CACHE", str(tmp_path / "file"))
    with pytest.raises(UserError, match=r"cannot be written .*: set TINY_LLM_CACHE$"):
        build(library)


@pytest.mark.parametrize("cxx", [None, "no-such-compiler"])
def test_no_compiler_is_one_line_and_plain_mlx(library, cxx, tmp_path, monkeypatch, capfd):
    monkeypatch.delenv("CXX", raising=False)
    if cxx is None:
        monkeypatch.setenv("PATH", str(tmp_path))
    else:
        monkeypatch.setenv("CXX", cxx)
    with pytest.raises(
        NoCompilerError, match=r"^no C\+\+ compiler: install g\+\+ or clang, or name one in CXX$"
    ):
        build(library)
    monkeypatch.setenv(native.VARIABLE, "on")
    native.switch("tiny_llm_ref", True)
    try:
        assert native.kernels("tiny_llm_ref") is None
        assert native.kernels("tiny_llm_ref") is None
    finally:
        native.switch("tiny_llm_ref", False)
    said = capfd.readouterr().err
    assert said.startswith("no C++ compiler") and said.count("\n") == 1


def test_an_instruction_set_that_cannot_run(monkeypatch):
    names = [copy.name for copy in isa.available()]
    monkeypatch.setenv(isa.VARIABLE, "mmx")
    with pytest.raises(
        UserError, match=f"TINY_LLM_ISA=mmx cannot run on this machine: choose one of {', '.join(names)}"
    ):
        isa.chosen()
    for name in names:
        monkeypatch.setenv(isa.VARIABLE, name)
        assert isa.chosen().name == name
    monkeypatch.delenv(isa.VARIABLE)
    assert isa.chosen().name == names[0]


@pytest.mark.parametrize(
    ("machine", "features", "names"),
    [
        ("x86_64", "", "plain"),
        ("x86_64", "avx2 fma f16c", "plain"),
        ("x86_64", "avx2 fma f16c bmi2", "avx2 plain"),
        ("x86_64", "avx2 fma f16c bmi2 avx512f avx512bw avx512dq avx512vl avx512cd", "avx512 avx2 plain"),
        (
            "x86_64",
            "avx2 fma f16c bmi2 avx512f avx512bw avx512dq avx512vl avx512cd avx512_vnni",
            "avx512vnni avx512 avx2 plain",
        ),
        ("aarch64", "", "neon plain"),
        ("arm64", "", "neon plain"),
        ("riscv64", "", "plain"),
    ],
)
def test_what_a_machine_can_run(machine, features, names, monkeypatch):
    monkeypatch.setattr(isa.platform, "machine", lambda: machine)
    monkeypatch.setattr(isa, "features", lambda: frozenset(features.split()))
    assert [copy.name for copy in isa.available()] == names.split()


def test_a_number_of_threads(threads):
    assert isa.physical_cores() >= 1
    for num in (3, 1):
        threads(num)
        assert native.binding().num_threads() == num
    with pytest.raises(ValueError, match="threads must be 1 or more"):
        threads(0)


def test_off_means_off(monkeypatch):
    monkeypatch.setenv(native.VARIABLE, "off")
    native.switch("tiny_llm_ref", True)
    assert native.kernels("tiny_llm_ref") is None
    monkeypatch.setenv(native.VARIABLE, "on")
    native.switch("tiny_llm_ref", False)
    assert native.kernels("tiny_llm_ref") is None
    monkeypatch.setattr(native.mx, "default_device", lambda: mx.gpu)
    native.switch("tiny_llm_ref", True)
    assert native.kernels("tiny_llm_ref") is None
    native.switch("tiny_llm_ref", False)


def test_a_compiler_with_a_space_in_its_path(library, tmp_path, monkeypatch):
    folder = tmp_path / "my tools"
    folder.mkdir()
    (folder / "c++").symlink_to(shutil.which("c++") or building.compiler())
    monkeypatch.setenv("CXX", str(folder / "c++"))
    assert build(library).exists()
