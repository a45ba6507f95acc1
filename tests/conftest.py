"""What tests of several folders need."""

import re
import sys
from collections.abc import Callable, Iterator, Mapping

import mlx.core as mx
import pytest

# Before the first import of a helper: asserts in them show their values. `-p tests.helpers.…` was earlier.
if "tests.helpers" not in sys.modules:
    pytest.register_assert_rewrite("tests.helpers")
from tests.helpers.rank import Ranks

_LONGEST_ID = 40


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


def pytest_make_parametrize_id(val: object) -> str | None:
    """A readable name for what pytest would number: float16 and not dtype0, 2x6x5 and not shape3."""
    name = _named(val)
    return name if name and len(name) <= _LONGEST_ID else None


def _named(val: object) -> str | None:
    if isinstance(val, mx.Dtype):
        return str(val).rpartition(".")[2]
    if isinstance(val, (tuple, list)):
        parts = [_named(each) for each in val]
        between = "x" if isinstance(val, tuple) else "_"
        return None if None in parts else between.join(map(str, parts)) or "empty"
    if isinstance(val, Mapping):
        parts = [_named(each) for each in val.values()]
        return (
            None if None in parts else "_".join(f"{key}={part}" for key, part in zip(val, parts, strict=True))
        )
    if isinstance(val, (int, float)) or val is None:
        return str(val)
    return val if isinstance(val, str) and re.fullmatch(r"[\w.]+", val) else None
