"""What a process does with kernels: when it goes on without them, its settings, its threads, and forks."""

import os
import sys
from pathlib import Path

import mlx.core as mx
import pytest
from tests.helpers.processes import finished
from tests.kernels.compilers import fake_compiler

from tiny_llm_lab.runtime import native
from tiny_llm_lab.runtime.native import runtime as runtime_module
from tiny_llm_lab.runtime.native.compiling.build import CompileError
from tiny_llm_lab.runtime.native.cpp_ops import CppOps, can_read_model
from tiny_llm_lab.runtime.native.mlx_ops import MlxOps
from tiny_llm_lab.runtime.native.runtime import Runtime
from tiny_llm_lab.runtime.native.settings import MAX_THREADS, kernels_mode, num_threads_wanted, usable_cores
from tiny_llm_lab.types import QuantizedWeights, UserError

PLAIN_MLX = "; until then we use plain MLX, which is slow on a CPU\n"


@pytest.fixture
def wanted(monkeypatch):
    """Kernels are wanted, by a process that has none yet."""
    monkeypatch.setenv(native.VARIABLE, "cpp")
    return Runtime()


def goes_on_without(runtime, capfd):
    """What is said, once, by a process that can have no kernels."""
    assert runtime.kernels("tiny_llm_ref", {}) is None
    assert runtime.kernels("tiny_llm_ref", {}) is None
    assert not runtime.can_run()
    lines = capfd.readouterr().err.splitlines(keepends=True)
    assert sum(line.startswith("compiling") for line in lines) <= 1, "what failed is not tried again"
    said = "".join(line for line in lines if not line.startswith("compiling"))
    assert said.endswith(PLAIN_MLX) and said.count("\n") == 1
    return said


@pytest.mark.parametrize("cxx", [None, "no-such-compiler"])
def test_without_a_compiler(cxx, wanted, tmp_path, monkeypatch, capfd):
    monkeypatch.delenv("CXX", raising=False)
    if cxx is None:
        monkeypatch.setenv("PATH", str(tmp_path))
    else:
        monkeypatch.setenv("CXX", cxx)
    said = goes_on_without(wanted, capfd)
    assert said.startswith("cannot find a C++ compiler: install g++ or clang, or name one in CXX;")


def test_with_a_compiler_that_fails(wanted, tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("TINY_LLM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("CXX", fake_compiler(tmp_path, "failing", fails="x.cpp:1: error: what is C++20?"))
    said = goes_on_without(wanted, capfd)
    assert said.startswith(
        "the C++ compiler failed (x.cpp:1: error: what is C++20?): "
        "install a newer g++ or clang, or name one in CXX;"
    )


def test_with_a_cache_that_cannot_be_written(wanted, tmp_path, monkeypatch, capfd):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TINY_LLM_CACHE", str(tmp_path / "file"))
    assert "cannot write it (Not a directory): set TINY_LLM_CACHE;" in goes_on_without(wanted, capfd)


@pytest.mark.parametrize("package", ["tiny_llm", "tiny_llm_ref"])
def test_a_source_that_does_not_compile(package, wanted, tmp_path, monkeypatch, capfd):
    (tmp_path / "broken.cpp").write_text("int broken( {\n")
    monkeypatch.setattr(runtime_module, "_folder", lambda name: tmp_path)
    monkeypatch.setattr(wanted, "binding", native.binding)
    if package == "tiny_llm":  # the learner's: the compiler's words are what helps
        with pytest.raises(CompileError, match=r"broken\.cpp:1:.*error"):
            wanted.kernels(package, {})
    else:
        assert wanted.kernels(package, {}) is None
        assert "the C++ compiler failed (" in capfd.readouterr().err


def test_a_subpackage_has_the_kernels_of_its_package(wanted):
    wanted._sets["tiny_llm_ref"] = native.load("tiny_llm_ref", "plain")
    ops = wanted.kernels("tiny_llm_ref.layers.deeper", {})
    assert isinstance(ops, CppOps) and ops._kernels is wanted._sets["tiny_llm_ref"]


# The operators of a model by what is asked for, on a CPU with a compiler and on a GPU; None: plain arrays.
SETS = [
    ("", CppOps, MlxOps),
    ("auto", CppOps, MlxOps),
    ("cpp", CppOps, None),
    ("mlx", MlxOps, MlxOps),
    ("off", None, None),
]


@pytest.mark.parametrize(("said", "on_cpu", "on_gpu"), SETS)
def test_the_set_of_a_model(said, on_cpu, on_gpu, monkeypatch):
    monkeypatch.setenv(native.VARIABLE, said)
    runtime = Runtime()
    monkeypatch.setattr(runtime, "binding", native.binding)
    monkeypatch.setattr(mx, "default_device", lambda: mx.cpu)
    assert type(runtime.kernels("tiny_llm_ref", {})) is (on_cpu or type(None))
    assert runtime.can_run() == (on_cpu is CppOps), "16 bits are as good as 32"
    monkeypatch.setattr(mx, "default_device", lambda: mx.gpu)
    assert not runtime.can_run()
    if said == "cpp":
        message = "^TINY_LLM_KERNELS=cpp needs a CPU: add --device cpu, or choose auto or mlx$"
        with pytest.raises(UserError, match=message):
            runtime.kernels("tiny_llm_ref", {})
    else:
        assert type(runtime.kernels("tiny_llm_ref", {})) is (on_gpu or type(None))


def test_without_its_variable_the_mode_is_auto(monkeypatch):
    monkeypatch.delenv(native.VARIABLE)
    assert kernels_mode() == "auto"


@pytest.mark.parametrize("said", ["banana", "on", "MLX", " cpp"])
def test_a_mode_that_does_not_exist(said, wanted, monkeypatch):
    monkeypatch.setenv(native.VARIABLE, said)
    for ask in (wanted.can_run, lambda: wanted.kernels("tiny_llm_ref", {})):
        with pytest.raises(UserError, match=f"^TINY_LLM_KERNELS={said} is not a mode: choose auto"):
            ask()


def test_which_weights_the_kernels_read():
    def reads(bits=4, group=64, **other):
        names = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
        kinds = dict.fromkeys(names, (bits, group)) | other
        blank = mx.zeros((1, 1))
        return can_read_model(
            {
                f"model.layers.0.x.{name}.weight": QuantizedWeights(blank, blank, blank, kind[1], kind[0])
                if kind[0]
                else blank
                for name, kind in kinds.items()
            }
        )

    assert all(reads(bits) for bits in (0, 4, 8)) and not reads(3) and not reads(4, 16)
    assert reads(down_proj=(8, 32)), "down stands alone"
    assert not reads(v_proj=(8, 64)), "q, k and v come from one operator"
    assert not reads(up_proj=(0, 64)), "so do gate and up"
    assert reads(in_proj_z=(8, 64)) and not reads(in_proj_z=(8, 64), in_proj_a=(0, 64)), "of a delta net"


@pytest.mark.parametrize("said", ["abc", "0", "-1", "100000", "2.5", "٣"])
def test_a_number_of_threads_that_cannot_be(said, wanted, monkeypatch):
    monkeypatch.setenv(native.THREADS_VARIABLE, said)
    message = f"^TINY_LLM_THREADS={said} is not a count: write 1 to {MAX_THREADS}$"
    for ask in (wanted.binding, wanted.can_run, lambda: wanted.kernels("tiny_llm_ref", {})):
        with pytest.raises(UserError, match=message):
            ask()


def test_a_number_of_threads(threads, monkeypatch):
    assert usable_cores() >= 1
    monkeypatch.setenv(native.THREADS_VARIABLE, "3")
    assert num_threads_wanted() == 3
    monkeypatch.delenv(native.THREADS_VARIABLE)
    assert num_threads_wanted() is None
    for num in (3, 1):
        native.set_num_threads(num)
        assert native.binding().num_threads() == num
    for num in (0, -1, 100_000):
        with pytest.raises(UserError, match=f"^threads must be 1 to {MAX_THREADS}, not {num}$"):
            native.set_num_threads(num)
    with pytest.raises(ValueError, match="threads must be 1 or more"):
        threads(0)
    assert native.binding().num_threads() == 1


def run(program):
    source = Path(native.__file__).parents[3]
    env = {**os.environ, "PYTHONPATH": str(source), native.VARIABLE: "cpp"}
    return finished([sys.executable, "-W", "ignore", "-c", program], env=env, timeout=120)


FEW_THREADS = """
import resource
from pathlib import Path
from tiny_llm_lab.runtime import native
from tiny_llm_lab.types import QuantizedWeights, UserError
binding = native.binding()
native.set_num_threads(2)
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (100 << 20), -1))  # room for the stacks of some threads
try:
    native.set_num_threads(200)
except UserError as error:
    print(error)
print(binding.num_threads())
import mlx.core as mx
mx.set_default_device(mx.cpu)
x = mx.ones((40, 64))
print(native.load("tiny_llm_ref", "plain").linear(x, [x])[0][0, 0].item())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits the memory of a process")
def test_threads_that_the_system_does_not_start():
    done = run(FEW_THREADS)
    said = done.stdout.splitlines()
    assert done.returncode == 0, done.stderr
    assert "of 200 threads could be started" in said[0] and "ask for fewer with --threads" in said[0]
    assert said[1:] == ["2", "64.0"], "the threads of before go on"


FORKS = """
import os
import sys
import mlx.core as mx
from tiny_llm_lab.runtime import native
mx.set_default_device(mx.cpu)
x = mx.ones((4, 64))
if sys.argv[1] == "after":
    mx.eval(native.load("tiny_llm_ref").linear(x, [x])[0])
child = os.fork()
if child == 0:
    try:
        print(native.load("tiny_llm_ref").linear(x, [x])[0][0, 0].item(), flush=True)
    except ValueError as error:
        print(error, flush=True)
    os._exit(0)
os.waitpid(child, 0)
if sys.argv[1] == "after":
    print(native.load("tiny_llm_ref").linear(x, [x])[0][0, 0].item())
"""


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_fork(when):
    done = run(FORKS.replace("sys.argv[1]", repr(when)))
    said = done.stdout.splitlines()
    assert done.returncode == 0, done.stderr
    if when == "before":
        assert said == ["64.0"]
    else:
        assert said[0].startswith("this process was forked after its parent") and "use spawn" in said[0]
        assert said[1:] == ["64.0"], "the parent goes on"
