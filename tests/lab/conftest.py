"""What several tests of the lab need."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.helpers.some_gpu import SomeGpu

from tiny_llm_lab.runtime import native
from tiny_llm_lab.runtime.native.device import fused_checks
from tiny_llm_lab.runtime.native.device.verdict import Verdict


@pytest.fixture(scope="module")
def kernels_on() -> Iterator[None]:
    """The reference runs on its C++ kernels where it can: ten times as fast, with the same schedules."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(native.VARIABLE, "cpp")
        yield


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> SomeGpu:
    """A GPU that is only claimed, and an empty cache folder."""
    return SomeGpu(monkeypatch, tmp_path / "cache")


@pytest.fixture
def sound(monkeypatch: pytest.MonkeyPatch) -> None:
    """MLX's operators are right without being tried, which takes a second."""
    monkeypatch.setattr(fused_checks, "judged", lambda check: Verdict(check.subject, True, "right"))
