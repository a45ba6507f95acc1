"""The threads of the kernels when they do not run, and when there is nothing to do."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tiny_llm_lab.runtime import native
from tiny_llm_lab.runtime.native.compiling.build import CPP, Library, build

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
    done = subprocess.run([str(program)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells what each thread does")
def test_idle_threads_sleep_and_do_not_wake():
    native.load("tiny_llm_ref")  # here, where a slow compiler takes nothing from the time limit
    env = {**os.environ, "PYTHONPATH": str(Path(native.__file__).parents[3]), native.VARIABLE: "cpp"}
    command = [sys.executable, "-W", "ignore", "-c", IDLE]
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=60)
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr
