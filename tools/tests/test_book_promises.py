"""The numbers of passing tests that chapters promise, for every task and every whole day."""

import contextlib
import io
import re
from collections import Counter
from pathlib import Path

import pytest

from tiny_llm_lab.course.manifest import load_course

ROOT = Path(__file__).resolve().parents[2]
OF_TASK = re.compile(r"test --task (\S+)\n(?:(?!</div>).)*?Expect `(\d+) passed`", re.DOTALL)
OF_DAY = re.compile(r"whole day.*?`(\d+) passed`")


class Collected:
    """A pytest plugin that counts the tests of every task."""

    def __init__(self):
        self.tasks = Counter()

    def pytest_collection_finish(self, session):
        markers = (item.get_closest_marker("task") for item in session.items)
        self.tasks.update(marker.args[0] for marker in markers if marker is not None)


def num_tests(week):
    """How many tests each task of a week has, the long ones included."""
    collected = Collected()
    files = map(str, sorted((ROOT / "tests" / f"week_{week}").glob("test_day_*.py")))
    with contextlib.redirect_stdout(io.StringIO()):
        args = ["--collect-only", "-q", "-p", "no:cacheprovider", *files]
        pytest.main([*args, "--solution", "ref", "--week", str(week)], plugins=[collected])
    return collected.tasks


@pytest.mark.parametrize("week", [1, 2, 3, 4])
def test_chapters_promise_as_many_passing_tests_as_there_are(week):
    tasks = num_tests(week)
    promised, wanted = dict[str, str](), dict[str, str]()
    for day in load_course().week(week):
        text = "".join((ROOT / "book" / "src" / page).read_text("utf-8") for page in day.pages)
        promised |= dict(OF_TASK.findall(text))
        wanted |= {task.id: str(tasks[task.id]) for task in day.tasks}
        for number in OF_DAY.findall(text):
            promised[day.id] = number
            wanted[day.id] = str(sum(tasks[task.id] for task in day.tasks))
    assert promised == wanted
