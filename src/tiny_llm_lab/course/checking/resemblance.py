"""How alike two runs of the same tests fail: a learner's, and one with a known mistake."""

import re
from collections.abc import Mapping

from tiny_llm_lab.course.checking.worker import Result
from tiny_llm_lab.types.packages import PACKAGES


def failures(result: Result) -> dict[str, str]:
    """The comparable message of each failed test."""
    return {each.test: comparable(each.message) for each in result.having("failed")}


def num_alike(wanted: Mapping[str, str], found: Mapping[str, str]) -> int:
    """How many of the tests in `wanted` fail with the same message in `found`."""
    return sum(found.get(test) == message for test, message in wanted.items())


def comparable(message: str) -> str:
    """A message without what differs between two packages or two runs: names, paths, addresses."""
    values = [line for line in message.splitlines() if not re.match(r"\s*\+\s+where ", line)]
    return re.sub(r"0x[0-9a-f]+", "0x", "\n".join(values).replace(PACKAGES["ref"], PACKAGES["mine"]))
