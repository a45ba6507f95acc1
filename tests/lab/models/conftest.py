"""Checkpoints made by these tests live in their own folder, and the device they pick ends with them."""

from collections.abc import Callable, Iterator
from pathlib import Path

import mlx.core as mx
import pytest
from tests.helpers.checkpoints import copy_of

Copy = Callable[[str], Path]


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TINY_LLM_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(autouse=True)
def same_device() -> Iterator[None]:
    before = mx.default_device()
    yield
    mx.set_default_device(before)


@pytest.fixture
def copy(tmp_path: Path) -> Copy:
    return lambda name: copy_of(name, tmp_path / "checkpoint")
