"""Where the kernels of this week run."""

import pytest
from tests.helpers import metal_emulator


@pytest.fixture(params=metal_emulator.PLACES)
def metal(request, monkeypatch):
    """Metal as far as a solution can tell: emulated, and on a Mac once more on the GPU."""
    metal_emulator.install(monkeypatch, request.param)
    return request.param
