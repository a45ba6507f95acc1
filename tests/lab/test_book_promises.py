"""The numbers of passing tests that chapters promise."""

import contextlib
import io
import re
from collections import Counter
from pathlib import Path

import pytest

from tiny_llm_lab.course.manifest import load_course

ROOT = Path(__file__).resolve().parents[2]


class Collected:
    """A pytest plugin that counts the tests of every task."""

    def __init__(self) -> None:
        self.tasks: Counter[str] = Counter()

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        markers = (item.get_closest_marker("task") for item in session.items)
        self.tasks.update(marker.args[0] for marker in markers if marker is not None)


@pytest.mark.parametrize(
    ("day", "num_promises"), [("2.2", 6), ("2.3", 3), ("2.4", 3), ("2.5", 5), ("2.7", 9)]
)
def test_a_chapter_promises_as_many_passing_tests_as_there_are(day: str, num_promises: int) -> None:
    text = (ROOT / "book" / "src" / load_course().day(day).chapter).read_text("utf-8")
    promised = dict(re.findall(r"test --task (\S+)\n(?:(?!</div>).)*?Expect `(\d+) passed`", text, re.DOTALL))
    assert len(promised) == num_promises
    collected = Collected()
    files = map(str, sorted((ROOT / "tests" / "week_2").glob(f"test_day_{day[-1]}*.py")))
    with contextlib.redirect_stdout(io.StringIO()):
        args = ["--collect-only", "-q", "-p", "no:cacheprovider", *files]
        pytest.main([*args, "--solution", "ref", "--day", day], plugins=[collected])
    assert {task: str(collected.tasks[task]) for task in promised} == promised
