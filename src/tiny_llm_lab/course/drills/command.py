"""`drill`: find the hidden mistake of a running server."""

import argparse
from collections.abc import Mapping
from typing import Final

from tiny_llm_lab.course.drills.drill import Drill, Drills, load_drills
from tiny_llm_lab.course.drills.load import sent
from tiny_llm_lab.course.drills.server import serve_with
from tiny_llm_lab.course.manifest import load_course
from tiny_llm_lab.course.record.record import load_record, save_record
from tiny_llm_lab.runtime.console.field_flags import at_least_one
from tiny_llm_lab.runtime.console.program import program
from tiny_llm_lab.runtime.console.talk import EXIT_FAILED
from tiny_llm_lab.runtime.console.wrapping import terminal_width, wrapped_lines
from tiny_llm_lab.types import UserError

HELP = "Start a server with a hidden mistake, which you name from its metrics, its page and a complaint."
EXAMPLES: Final = (
    ("", "list the drills, and those that you have solved"),
    ("7", "read the complaint of drill 7, and start its server"),
    ("7 --load", "send that server the drill's requests, from a second terminal"),
    ("7 --answer C", "say which mistake it is"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("number", nargs="?", type=at_least_one, metavar="N", help="which drill (default: list them)")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--load", action="store_true", help="send the drill's requests to its server")
    what.add_argument("--answer", type=str.upper, metavar="LETTER", help="grade this answer")
    what.add_argument("--reveal", action="store_true", help="show the answer, and what gives it away")
    add("--port", type=int, default=8000, help="port of the server (default: %(default)s)")


def run(args: argparse.Namespace) -> int:
    course = load_course()
    drills = load_drills(course)
    if args.number is None:
        if args.load or args.answer or args.reveal:
            raise UserError(f"which drill? Give its number, 1 to {len(drills.drills)}")
        _print(list_lines(drills, load_record(course.root)[0].drills))
        return 0
    drill = drills.drill(args.number)
    if args.load:
        for line in sent(drill, f"http://127.0.0.1:{args.port}"):
            print(line, flush=True)
        return 0
    if args.reveal:
        _print(reason_lines(drills, drill))
        return 0
    if args.answer is not None:
        is_right = graded(drill, args.answer)
        record = load_record(course.root)[0]
        save_record(course.root, record.with_drill(drill.mistake, is_right))
        _print(reason_lines(drills, drill) if is_right else _wrong_lines(drills, drill, args.answer))
        return 0 if is_right else EXIT_FAILED
    _print(text_lines(drills, drill, args.port))
    mistake = drills.mistakes[drill.mistake]
    return serve_with(course, mistake, [*drill.serve_arguments, "--port", str(args.port)])


def graded(drill: Drill, letter: str) -> bool:
    """Whether an answer is right. Raises UserError for one that is not offered."""
    if letter not in drill.choices:
        raise UserError(f"drill {drill.number} has no answer {letter!r}: choose {', '.join(drill.choices)}")
    return letter == drill.right


def list_lines(drills: Drills, answered: Mapping[str, bool]) -> list[str]:
    """A line for each drill: what became of it, and how its complaint begins."""
    words = {True: "solved", False: "wrong", None: ""}
    num_solved = sum(answered.get(drill.mistake, False) for drill in drills.drills)
    return [
        *(
            f"{drill.number:2}  {words[answered.get(drill.mistake)]:6}  {drill.complaint.partition('. ')[0]}"
            for drill in drills.drills
        ),
        f"{num_solved} of {len(drills.drills)} solved",
    ]


def text_lines(drills: Drills, drill: Drill, port: int) -> list[str]:
    """The complaint, what to run, where to look, and the answers."""
    own = f"{program()} drill {drill.number}"
    at = "" if port == 8000 else f" --port {port}"
    return [
        f"Drill {drill.number}. A user writes:",
        f"  {drill.complaint.strip()}",
        f"The server below runs with: serve {drill.flags}",
        f"In a second terminal, send its users' requests as often as you like: {own} --load{at}",
        f"Then look at http://127.0.0.1:{port} and http://127.0.0.1:{port}/metrics, in this order:",
        *(f"  - {each}" for each in drill.look),
        "Which mistake is it?",
        *(f"  {letter}  {drills.says(key)}" for letter, key in drill.choices.items()),
        f"Answer with {own} --answer LETTER. Ctrl-C ends the server.",
    ]


def reason_lines(drills: Drills, drill: Drill) -> list[str]:
    """The right answer, and what shows it."""
    head = f"{drill.right} is right: {drills.says(drill.mistake)}."
    return [head, drills.reasons[drill.mistake].strip()]


def _wrong_lines(drills: Drills, drill: Drill, letter: str) -> list[str]:
    return [
        f"{letter} is wrong: this server does not fail because {drills.says(drill.choices[letter])}.",
        *(f"  look again: {each}" for each in drill.look),
    ]


def _print(lines: list[str]) -> None:
    for line in lines:
        indent = " " * (len(line) - len(line.lstrip()) + 2)
        print("\n".join(wrapped_lines(line, terminal_width(), indent)), flush=True)
