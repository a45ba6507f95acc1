"""What several tests of the lab need."""

import pytest
from tests.helpers.some_gpu import SomeGpu
from tests.helpers.toy import toy_checkpoint

from tiny_llm_lab.runtime import native
from tiny_llm_lab.runtime.native.device import fused_checks
from tiny_llm_lab.runtime.native.device.verdict import Verdict
from tiny_llm_lab.serving.options import model_options


@pytest.fixture(scope="module")
def kernels_on():
    """The reference runs on its C++ kernels where it can: ten times as fast, with the same schedules."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(native.VARIABLE, "cpp")
        yield


@pytest.fixture
def toy(monkeypatch):
    """Commands serve the toy checkpoint, whatever --model says."""
    monkeypatch.setattr(model_options, "load_checkpoint", lambda *_: toy_checkpoint())


@pytest.fixture
def gpu(monkeypatch, tmp_path):
    """A GPU that is only claimed, and an empty cache folder."""
    return SomeGpu(monkeypatch, tmp_path / "cache")


@pytest.fixture
def sound(monkeypatch):
    """MLX's operators are right without being tried, which takes a second."""
    monkeypatch.setattr(fused_checks, "judged", lambda check: Verdict(check.subject, True, "right"))
