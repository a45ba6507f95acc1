"""`hint`: the hints of a task, one at a time, from a nudge to nearly the answer."""

import argparse
import textwrap

from tiny_llm_lab.course.manifest import Task
from tiny_llm_lab.course.record.record import save_record
from tiny_llm_lab.course.record.standing import Desk, chapter_of, open_desk
from tiny_llm_lab.runtime.console.talk import program, terminal_width, wrapped_lines
from tiny_llm_lab.types import UserError

HELP = "Give the next hint for a task: each call shows one more, from a nudge to nearly the answer."
EXAMPLES = (
    ("", "show the next hint for the task that `next` names"),
    ("1.1.2", "show the next hint for task 1.1.2"),
    ("1.1.2 --again", "show the hints for 1.1.2 that you have seen"),
)
_WIDTH = 80


def add_arguments(parser: argparse.ArgumentParser) -> None:
    about = "a task such as 1.1.2 (default: the next task)"
    parser.add_argument("task", nargs="?", metavar="TASK", help=about)
    parser.add_argument("--again", action="store_true", help="show the hints that you have seen")


def run(args: argparse.Namespace) -> int:
    desk = open_desk()
    task = desk.task_or_next(args.task, "hint 2.2.3")
    seen = min(desk.record.hints.get(task.id, 0), len(task.hints))
    if args.again and not seen:
        raise UserError(f"you have not seen a hint for task {task.id} yet: run {program()} hint {task.id}")
    shown = seen if args.again else min(seen + 1, len(task.hints))
    for line in hint_lines(desk, task, 0 if args.again else seen, shown, terminal_width() or _WIDTH):
        print(line)
    if shown > seen:
        save_record(desk.course.root, desk.record.with_hints(task.id, shown))
    return 0


def hint_lines(desk: Desk, task: Task, first: int, last: int, width: int = _WIDTH) -> list[str]:
    """Hints `first` to `last` of a task, counted from 0, `last` excluded, and what comes after them."""
    chapter, lines = chapter_of(desk.course, task), [f"{task.id} {task.title}"]
    if not task.hints:
        return [*lines, f"this task has no hints: read {chapter}"]
    for number in range(first, last):
        head = f"hint {number + 1} of {len(task.hints)}: "
        lines += textwrap.wrap(head + task.hints[number], width, subsequent_indent="  ")
    if first == last:
        lines.append(f"there are no more hints: {program()} hint {task.id} --again shows those you saw")
    if last == len(task.hints):
        lines += wrapped_lines(f"the chapter has the rest: {chapter}", width)
    return lines
