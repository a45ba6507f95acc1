"""Every compiled copy of the kernels that this machine can run, with one thread and with two.

The chosen copy with two threads sees all tests. Every other copy sees one case of each test function, and
another case each; `--full` shows all to all of them.
"""

import os
from functools import cache
from pathlib import Path

import mlx.core as mx
import pytest

from tiny_llm_lab.runtime import native
from tiny_llm_lab.runtime.native.compiling import isa
from tiny_llm_lab.runtime.native.compiling.build import NoCompilerError

# A compiled library to test instead: mistakes.py names broken ones.
VARIABLE = "TINY_LLM_TESTED_KERNELS"
NAMES = ["given"] if VARIABLE in os.environ else [copy.name for copy in isa.available()]
CHOSEN = "given" if VARIABLE in os.environ else os.environ.get("TINY_LLM_ISA") or NAMES[0]
# The fixtures with a copy for a parameter, alone or with a number of threads.
_COPIES = ("k", "copy", "kernels_on", "both")
DTYPES = [mx.float32, mx.float16, mx.bfloat16]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Mark as long all that the other copies need not see every time."""
    cases = {}  # by test function and copy
    for item in items:
        if Path(item.path).parent == Path(__file__).parent and (copy := _copy_of(item)) is not None:
            cases.setdefault((item.path, item.originalname), {}).setdefault(copy, []).append(item)
    for (_, name), by_copy in cases.items():
        others = (each for copy, each in by_copy.items() if copy not in (CHOSEN, (CHOSEN, 2)))
        for number, each in enumerate(others, len(name)):  # one after the other, beginning anywhere
            for item in each[: number % len(each)] + each[number % len(each) + 1 :]:
                item.add_marker("long")


def _copy_of(item):
    params = item.callspec.params if hasattr(item, "callspec") else {}
    return next((params[name] for name in _COPIES if name in params), None)


@pytest.fixture(autouse=True)
def _on_the_cpu():
    """These kernels are for CPUs: where there is a GPU, the tests leave it alone."""
    before = mx.default_device()
    mx.set_default_device(mx.cpu)
    yield
    mx.set_default_device(before)


@cache
def kernel_set(name):
    """The kernels for one instruction set; without a compiler a failure of one line."""
    try:
        if name == "given":
            return native.binding().KernelSet(os.environ[VARIABLE])
        return native.load("tiny_llm_ref", name)
    except NoCompilerError as error:
        pytest.fail(f"the kernels are not tested: {error}", pytrace=False)


@pytest.fixture
def threads():
    """Sets the number of threads, and back to what it was."""
    binding, before = native.binding(), native.binding().num_threads()
    yield binding.set_num_threads
    mx.synchronize()
    binding.set_num_threads(before)


@pytest.fixture(
    params=[(name, num) for name in NAMES for num in (1, 2)], ids=lambda path: f"{path[0]}-{path[1]}"
)
def k(request, threads):
    """The KernelSet under test."""
    name, num = request.param
    found = kernel_set(name)
    threads(num)
    return found


@pytest.fixture(params=DTYPES, ids=str)
def dtype(request):
    return request.param
