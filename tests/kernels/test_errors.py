"""An error inside a running kernel, like that of an unwritten task, reaches Python; the rest goes on."""

import os
import sys
from contextlib import contextmanager
from pathlib import Path

import mlx.core as mx
import pytest
from tests.helpers.matrices import product
from tests.helpers.processes import finished
from tests.helpers.tolerance import assert_close, of_kernel
from tests.helpers.toy import random_array

from tiny_llm_lab.runtime import native
from tiny_llm_lab.runtime.native.compiling.build import CPP, Library, build

# swiglu throws at once, argmax in the middle of a thread's work.
SOURCE = """
#include "kernels.h"
using namespace tiny_llm;
extern "C" __attribute__((visibility("default"))) const Kernels* tiny_llm_kernels() {
  static Kernels table;
  table.swiglu = [](ThreadPool&, const Tensor&, const Tensor&, const Tensor&) {
    throw std::runtime_error("task 2.5.4");
  };
  table.argmax = [](ThreadPool& threads, const Tensor&, uint32_t*) {
    threads.each(64, [](int, int64_t item) { if (item == 40) throw std::runtime_error("task 2.3.4"); });
  };
  return &table;
}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """Kernels that throw."""
    source = tmp_path_factory.mktemp("throwing") / "throwing.cpp"
    source.write_text(SOURCE)
    return build(Library("throwing.so", ((source, (f"-I{CPP / 'include'}",)),), what="kernels that throw"))


@contextmanager
def fails_in_kernel(match):
    """What runs here fails when it is computed; what MLX skipped behind the error is counted as done."""
    with pytest.raises(RuntimeError, match=match):
        yield
    mx.synchronize()
    native.binding().settle()


def test_an_error_in_a_kernel_reaches_python(library, k):
    throwing = native.binding().KernelSet(str(library))
    x, w = random_array(1, 5, 64), random_array(2, 300, 64)
    want = product(x, w)
    for _ in range(150):  # without `settle` MLX waits for ever after about a hundred
        with fails_in_kernel("^task 2.5.4$"):
            mx.eval(throwing.swiglu(x, x))
        with fails_in_kernel("^task 2.3.4$"):
            mx.eval(throwing.argmax(x))
        got = k.linear(x, [w])[0]
        mx.async_eval(got)
        assert_close(got, want, of_kernel(want, mx.float32), what="what comes after an error")


PROGRAM = """
import sys
import mlx.core as mx
from tiny_llm_lab.runtime import native
throwing = native.binding().KernelSet(sys.argv[1])
x = mx.ones((1, 64))
try:
    mx.eval(throwing.swiglu(x, x))
except RuntimeError as error:
    print(error)
print(native.load("tiny_llm_ref", "plain").linear(x, [x])[0].item())
"""


def test_a_program_goes_on_after_an_error_and_ends_well(library):
    package = Path(native.__file__).parents[3]
    done = finished(
        [sys.executable, "-c", PROGRAM, str(library)], env={**os.environ, "PYTHONPATH": str(package)}
    )
    assert (done.returncode, done.stdout) == (0, "task 2.5.4\n64.0\n"), done.stderr


# The threads of the kernels when they do not run, and when there is nothing to do


IDLE = """
import threading
import time
from pathlib import Path
import mlx.core as mx
from tiny_llm_lab.runtime import native
mx.set_default_device(mx.cpu)
native.set_num_threads(4)  # on two cores some of them are late for every operator
x = mx.ones((400, 64))
mx.eval(native.load("tiny_llm_ref").linear(x, [x])[0])
own = threading.get_native_id()
tasks = [task for task in Path("/proc/self/task").iterdir() if int(task.name) != own]

def are_asleep():
    return all((task / "stat").read_text().rpartition(")")[2].split()[0] == "S" for task in tasks)

def switches():
    texts = [(task / "status").read_text() for task in tasks]
    return [text.partition("voluntary_ctxt_switches:")[2].split()[0] for text in texts]

def are_idle():
    before = switches()
    time.sleep(0.2)
    return are_asleep() and switches() == before

while not are_idle():  # on a busy machine some come late to their last look
    pass
print(len(tasks) > 3)
"""


def test_threads_that_are_late_are_not_waited_for():
    sources = (Path(__file__).with_name("late_threads.cpp"), CPP / "thread_pool.cpp")
    flags = ("-std=c++20", "-pthread", f"-I{CPP / 'include'}")
    what = "the program whose threads are held"
    program = build(Library("late", tuple((path, flags) for path in sources), ("-pthread",), what, True))
    done = finished([str(program)], timeout=60)
    assert done.returncode == 0, done.stdout


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells what each thread does")
def test_idle_threads_sleep_and_do_not_wake():
    native.load("tiny_llm_ref")  # here, where a slow compiler takes nothing from the time limit
    env = {**os.environ, "PYTHONPATH": str(Path(native.__file__).parents[3]), native.VARIABLE: "cpp"}
    command = [sys.executable, "-W", "ignore", "-c", IDLE]
    done = finished(command, env=env, timeout=60)
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr
