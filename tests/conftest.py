"""What tests of several folders need."""

from collections.abc import Callable, Iterator

import pytest
from tests.helpers.rank import Ranks


@pytest.fixture(scope="session")
def ranks_of(
    pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[int], Ranks]]:
    """ranks_of(2): two ranks of the solution under test, the same two for all tests of a process."""
    started: dict[int, Ranks] = {}

    def of(size: int) -> Ranks:
        if size not in started:
            folder = tmp_path_factory.mktemp(f"ranks-{size}")
            started[size] = Ranks(pytestconfig.getoption("--solution"), size, folder)
        return started[size]

    yield of
    for each in started.values():
        each.close()
