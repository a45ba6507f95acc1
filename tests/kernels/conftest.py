"""Every compiled copy of the kernels that this machine can run, with one thread and with two."""

import os
from functools import cache

import mlx.core as mx
import pytest

from tiny_llm_lab import native
from tiny_llm_lab.native import isa
from tiny_llm_lab.native.build import NoCompilerError

# A compiled library to test instead: mistakes.py names broken ones.
VARIABLE = "TINY_LLM_TESTED_KERNELS"
NAMES = ["given"] if VARIABLE in os.environ else [copy.name for copy in isa.available()]
DTYPES = [mx.float32, mx.float16, mx.bfloat16]


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
