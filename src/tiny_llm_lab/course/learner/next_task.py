"""`next`: the first task that has not passed, where to write it, and how to test it."""

import argparse
import textwrap
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from tiny_llm_lab.course.exercises import exercises
from tiny_llm_lab.course.manifest import Course, Task, load_course
from tiny_llm_lab.course.record.record import load_record, save_record
from tiny_llm_lab.course.record.standing import Desk, State, chapter_of, languages, open_desk
from tiny_llm_lab.course.source import is_of
from tiny_llm_lab.course.starter.filling import fill_before
from tiny_llm_lab.course.starter.stubs import starter
from tiny_llm_lab.runtime.console.talk import program, terminal_width

HELP = "Say what to write next: the place, the signature, the chapter and the command that tests it."
EXAMPLES = (
    ("", "show the first Python task that has not passed; C++ and Metal tasks can wait"),
    ("--path short", "take the short path: days that are not on it get their answers"),
    ("--path bonus", "take bonus tasks as well, which are on neither of the other paths"),
)

_MAX_SIGNATURES: Final = 4
_GIVEN: Final = "given, with what it adds:"
_WIDTH: Final = 80


def add_arguments(parser: argparse.ArgumentParser) -> None:
    about = "the whole path, about half of it, or the bonus tasks too (default: as before)"
    parser.add_argument("--path", choices=("whole", "short", "bonus"), help=about)


def run(args: argparse.Namespace) -> int:
    course = load_course()
    if args.path is not None:
        save_record(course.root, replace(load_record(course.root)[0], path=args.path))
    for line in next_lines(desk_on_path(course), terminal_width() or _WIDTH):
        print(line)
    return 0


def desk_on_path(course: Course | None = None) -> Desk:
    """A look at the clone; on the short path, once what is left out before the next task is given."""
    desk = open_desk(course)
    now = desk.standing
    if now.path != "short" or now.next_task is None or not now.has_open_before(now.next_task):
        return desk
    fill_before(desk.course, now.next_task.day_id, starter(desk.course))
    return open_desk(desk.course)


def next_lines(desk: Desk, width: int = _WIDTH) -> list[str]:
    """All that `next` prints, no line of prose wider than `width`."""
    task = desk.standing.next_task
    nothing = textwrap.wrap(f"next: nothing, {desk.standing.end}", width, subsequent_indent="  ")
    lines = _task_lines(desk, task, width) if task else nothing
    for title, tasks in (
        ("optional, nothing later needs them", desk.standing.passed_by),
        ("changed since it passed", desk.standing.changed),
    ):
        if tasks:
            named = ", ".join(_named(each) for each in tasks)
            lines += ["", *textwrap.wrap(f"{title}: {named}", width, subsequent_indent="  ")]
    if desk.standing.changed:
        lines.append(f"  {program()} test {desk.standing.changed[0].id} grades it again")
    return lines


def _task_lines(desk: Desk, task: Task, width: int) -> list[str]:
    outcome, state = desk.record.outcomes.get(task.id), desk.standing.state(task)
    head = f"next: {task.id} {task.title} (day {task.day_id}, {desk.course.day(task.day_id).title})"
    lines = textwrap.wrap(head, width, subsequent_indent="  ")
    if state is State.FAILING and outcome:
        num_tests = outcome.passed + outcome.failed + outcome.todo
        # A run may have stopped at a failure, or have been of some tests only.
        ended = f"{outcome.failed} of its {num_tests} tests failed" if outcome.ran_all else "its tests failed"
        lines.append(f"  {ended} when they ran last")
    elif state is State.WRITTEN:
        lines.append("  you have written it, and it has not passed yet: run its tests")
    lines += ["", f"  {desk.where(task)}", *_signatures(desk, task, width)]
    extended = _extended(desk, task)
    for what, named in extended.items():
        text = f"{what} {', '.join(named)}" if named else ""
        lines += textwrap.wrap(text, width, initial_indent="  ", subsequent_indent="    ")
    lines += [f"  {'fewer than' if extended[_GIVEN] else 'about'} {task.lines} lines"] if task.lines else []
    return [
        *lines,
        "",
        f"  read:  {chapter_of(desk.course, task)}",
        f"  watch: {program()} watch {task.id}",
        f"  test:  {program()} test {task.id}",
        *([f"  help:  {program()} hint"] if task.hints else []),
    ]


def _extended(desk: Desk, task: Task) -> dict[str, list[str]]:
    """What the task extends, in words: an answer that was given has what the task adds."""
    own = {
        symbol
        for symbol in task.grows
        for file, source in exercises(desk.course).items()
        for name in source.task_of
        if is_of(name, [symbol]) and not desk.sources.is_same(file, source.functions[name])
    }
    missing = desk.sources.missing_parameters(task)
    return {
        "it extends": [symbol for symbol in task.grows if symbol in own],
        "new parameters:": [f"{each.symbol}({each.parameter})" for each in missing],
        _GIVEN: [symbol for symbol in task.grows if symbol not in own],
    }


def _signatures(desk: Desk, task: Task, width: int) -> Iterator[str]:
    listed = [place for place in desk.sources.places(task) if place.signature and not place.is_written]
    for place in listed[:_MAX_SIGNATURES]:
        yield from textwrap.wrap(place.signature, width, initial_indent=" " * 4, subsequent_indent=" " * 8)
    if len(listed) > _MAX_SIGNATURES:
        yield f"    and {len(listed) - _MAX_SIGNATURES} more functions of this task in the file"


def _named(task: Task) -> str:
    kind = "bonus" if task.bonus else languages(task)
    return f"{task.id} {task.title}" + (f" ({kind})" if kind != "Python" else "")
