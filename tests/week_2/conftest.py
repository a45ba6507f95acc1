"""Where the kernels of this week run."""

import pytest
from tests.helpers import metal_emulator
from tests.helpers.devices import on_cpu
from tests.helpers.kernel_probe import Compiled, Evaluated, probe_of

from tiny_llm_lab.runtime.native.cpp_ops import CppOps
from tiny_llm_lab.types.packages import PACKAGES


@pytest.fixture(params=metal_emulator.PLACES)
def metal(request, monkeypatch):
    """Metal as far as a solution can tell: emulated, and on a Mac once more on the GPU."""
    metal_emulator.install(monkeypatch, request.param)
    return request.param


@pytest.fixture(scope="session")
def kernels(pytestconfig):
    """The operators that the C++ of the solution under test makes: compiled once, on first use."""
    from tiny_llm_lab.runtime import native

    package = PACKAGES[pytestconfig.getoption("--solution")]
    return Compiled(lambda: Evaluated(native.load(package)))


@pytest.fixture
def kernels_on(monkeypatch):
    """Models that are built now run on the C++ kernels of the solution under test, layer by layer."""
    monkeypatch.setattr(CppOps, "layer_stack", lambda *_: None)  # which is task 3.2.6
    with on_cpu("cpp"):
        yield


@pytest.fixture(scope="session")
def probe(pytestconfig):
    """probe("attention"): parts of a C++ file that no operator shows, as functions of NumPy arrays."""
    package = PACKAGES[pytestconfig.getoption("--solution")]
    probes = {}
    return lambda name: probes.setdefault(name, Compiled(lambda: probe_of(package, name)))
