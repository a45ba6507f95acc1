"""What several tests of the lab need."""

from collections.abc import Iterator

import pytest

from tiny_llm_lab import native


@pytest.fixture(scope="module")
def kernels_on() -> Iterator[None]:
    """The reference runs on its C++ kernels where it can: ten times as fast, with the same schedules."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(native.VARIABLE, "cpp")
        yield
