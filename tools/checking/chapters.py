"""Whether the course can be done as it is written, day by day."""

import re
import tempfile
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from tiny_llm_lab.course.exercises import reference_sources
from tiny_llm_lab.course.grading.sandbox import Result, Trial, run_trials, settled
from tiny_llm_lab.course.manifest import Course, Day, Task
from tiny_llm_lab.course.source import Source
from tiny_llm_lab.runtime.console.talk import log, plural
from tools.checking.learner import SimulatedLearner

_LIMIT_S = 600.0
_DO = re.compile(r"<div class=\"do\">\n(?P<says>.*?)</div>", re.DOTALL)
_TEST = re.compile(r"run watch (\S+)\n((?:(?!run watch).)*)", re.DOTALL)
_EXPECT = re.compile(r"Expect `(?P<passed>\d+) passed(?:, (?P<todo>\d+) todo)?`")
_CODE = re.compile(r"`([^`\n]+)`")


def chapter_faults(course: Course, day: str | None = None, is_quick: bool = False) -> Iterator[str]:
    """What a learner who does what a page says finds otherwise, of all days or one.

    With `is_quick` only the tests of each day's first task are run.
    """
    days, sources = course.days if day is None else (course.day(day),), reference_sources(course)
    tried = {task for each in days for task in each.tasks[: 1 if is_quick else None]}
    results = run_trials(_trials(course, tried), _LIMIT_S)
    for i, each in enumerate(days, 1):
        pages = _instructions(course, each)
        for task in each.tasks:
            block, expected = pages.get(task.id, ("", ""))
            yield from (f"{task.id}: the page asks for no {name}" for name in _unnamed(task, block, sources))
            if task in tried:
                yield from _wrong_count(task, expected, settled(next(results), _LIMIT_S))
        log(f"{i} of {plural(len(days), 'day')}")


def _trials(course: Course, tried: Collection[Task]) -> Iterator[Trial]:
    """The tests of each task of `tried`, once it and all before it are written; no bonus where it is none."""
    with tempfile.TemporaryDirectory(prefix="tiny-llm-") as folder:
        whole, all_of_it = (SimulatedLearner(course, Path(folder) / name) for name in ("whole", "all"))
        for task in course.tasks:
            for learner in (all_of_it, *([] if task.bonus else [whole])):
                learner.write(task)
            if task in tried:  # `learner` is the last one that wrote it
                yield learner.trial([task], "--task", task.id)


def _instructions(course: Course, day: Day) -> dict[str, tuple[str, str]]:
    """By each task what the pages of its day tell a learner to do, and what to expect."""
    texts = (course.root / "book/src" / page for page in day.pages)
    blocks = [block for path in texts for block in _DO.findall(path.read_text(encoding="utf-8"))]
    return {task: (block, expected) for block in blocks for task, expected in _TEST.findall(block)}


def _unnamed(task: Task, page: str, sources: Mapping[str, Source]) -> Iterator[str]:
    """The public methods of a task that its page leaves out of a list of its class's methods."""
    named = set(_CODE.findall(page))
    owned = [each for file in task.files for each, owner in sources[file].task_of.items() if owner == task]
    said = [name for name in owned if name in named or name.rpartition(".")[2] in named]
    for name in owned:
        owner, _, method = name.rpartition(".")
        is_listed = owner and sum(each.rpartition(".")[0] == owner for each in said) > 1
        if is_listed and name not in said and method != "__init__":
            yield name


def _wrong_count(task: Task, page: str, result: Result) -> Iterator[str]:
    if result.error is not None:
        yield f"{task.id}: {result.error}"
        return
    outcomes = ("passed", "todo", "failed", "skipped")
    counts = {outcome: len(result.having(outcome)) for outcome in outcomes}
    expected = _EXPECT.search(page)
    said = {key: int(num or 0) for key, num in expected.groupdict().items()} if expected else {}
    if said != {key: counts[key] for key in ("passed", "todo")} or counts["failed"]:
        yield f"{task.id}: page says {_listed(said) or 'no number'}, got {_listed(counts) or 'no test'}"
        yield from (f"{task.id}: {fault}" for fault in result.faults()[:3])


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{num} {outcome}" for outcome, num in counts.items() if num)
