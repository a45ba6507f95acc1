"""Checkpoints made by these tests live in their own folder, and the device they pick ends with them."""

import mlx.core as mx
import pytest
from tests.helpers.checkpoints import copy_of, edit_json

from tiny_llm_lab.runtime import cache


@pytest.fixture(scope="session")
def cache_folder(tmp_path_factory):
    """With the kernels that are compiled already, which would take a minute to compile again."""
    folder, native = tmp_path_factory.mktemp("cache"), cache.cache_folder() / "native"
    native.mkdir(parents=True, exist_ok=True)
    (folder / "native").symlink_to(native)
    return folder


@pytest.fixture(scope="module", autouse=True)
def own_cache(cache_folder):
    """For these modules only."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TINY_LLM_CACHE", str(cache_folder))
        yield


@pytest.fixture(autouse=True)
def same_device():
    before = mx.default_device()
    yield
    mx.set_default_device(before)


@pytest.fixture
def copy(tmp_path):
    """Copies a checkpoint, and sets the keys of its config.json that are given."""

    def copy(name, **changes):
        folder = copy_of(name, tmp_path / "checkpoint")
        if changes:
            edit_json(folder / "config.json", **changes)
        return folder

    return copy
