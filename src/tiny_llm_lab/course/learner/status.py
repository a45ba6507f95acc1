"""`status`: a line for each day, a sign for each task, and where you are."""

import argparse
from typing import Final

from rich.text import Text

from tiny_llm_lab.course.manifest import Day, Task
from tiny_llm_lab.course.record.standing import Standing, State, is_optional, open_desk
from tiny_llm_lab.runtime.console.tables import stdout_can_print, stdout_console
from tiny_llm_lab.runtime.console.talk import program

HELP = "Show how far you are: a line for each day, a sign for each task."
EXAMPLES = (("", "show all days, from your test runs and your current code"),)

_SIGNS: Final = {
    State.PASSED: ("✓", "+", "green"),
    State.FAILING: ("✗", "x", "red"),
    State.WRITTEN: ("◐", "~", "yellow"),
    State.CHANGED: ("◐", "~", "yellow"),
    State.TODO: ("○", "o", ""),
    State.GIVEN: ("–", "-", "dim"),
}
_OPTIONAL: Final = ("·", ".", "dim")
_ARROW: Final = ("→", ">")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """It takes no arguments."""


def run(args: argparse.Namespace) -> int:
    console = stdout_console()
    is_plain = not stdout_can_print("".join(sign for sign, *_ in _SIGNS.values()) + _ARROW[0])
    for line in status_lines(open_desk().standing, is_plain):
        console.print(line, soft_wrap=not console.is_terminal)
    return 0


def status_lines(now: Standing, is_plain: bool = False) -> list[Text]:
    """All that `status` prints; `is_plain` keeps to ASCII."""
    task = now.next_task
    room = max(len(day.tasks) for day in now.course.days)
    lines = []
    for day in now.course.days:
        is_here = task is not None and task.day_id == day.id
        lines.append(_day_line(now, day, room, is_here, is_plain))
    lines += [Text(), _legend(is_plain)]
    if now.num_given:
        lines.append(Text(f"{_SIGNS[State.GIVEN][is_plain]} {State.GIVEN.value}: {now.num_given} tasks"))
    lines += [Text(), Text(f"{now.num_passed} of {len(now.course.tasks)} tasks passed")]
    after = f"next: {task.id} {task.title} ({program()} next says where)" if task else now.end
    return [*lines, Text(after)]


def _day_line(now: Standing, day: Day, room: int, is_here: bool, is_plain: bool) -> Text:
    line = Text(f"{_ARROW[is_plain] if is_here else ' '} {day.id:<4} ", style="bold" if is_here else "")
    for task in day.tasks:
        sign, style = _sign(now, task, is_plain)
        line.append(sign, style)
    return line.append(" " * (room - len(day.tasks) + 2)).append(day.title)


def _sign(now: Standing, task: Task, is_plain: bool) -> tuple[str, str]:
    is_left_out = is_optional(task) and now.state(task) is State.TODO
    sign, plain, style = _OPTIONAL if is_left_out else _SIGNS[now.state(task)]
    return plain if is_plain else sign, style


def _legend(is_plain: bool) -> Text:
    named = (State.PASSED, State.FAILING, State.WRITTEN, State.TODO)
    parts = [f"{_SIGNS[state][is_plain]} {state.value}" for state in named]
    return Text("  ".join([*parts, f"{_OPTIONAL[is_plain]} optional (C++, bonus)"]))
