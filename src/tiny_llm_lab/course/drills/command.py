"""`drill`: find the hidden mistake of a running server."""

import argparse
from collections.abc import Iterable, Iterator, Mapping
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
    add, what = parser.add_argument, parser.add_mutually_exclusive_group()
    add("number", nargs="?", type=at_least_one, metavar="N", help="which drill (default: list them)")
    what.add_argument("--load", action="store_true", help="send the drill's requests to its server")
    what.add_argument("--answer", type=str.upper, metavar="LETTER", help="grade this answer")
    what.add_argument("--reveal", action="store_true", help="show the answer, and what gives it away")
    add("--port", type=int, default=8000, help="port of the server (default: %(default)s)")


def run(args: argparse.Namespace) -> int:
    course = load_course()
    drills, record = load_drills(course), load_record(course.root)[0]
    if args.number is None:
        if args.load or args.answer or args.reveal:
            raise UserError(f"which drill? Give its number, 1 to {len(drills.drills)}")
        _print(_listed(drills, record.drills))
        return 0
    drill = drills.drill(args.number)
    right = [f"{drill.right} is right: {drills.says(drill.mistake)}", drills.reasons[drill.mistake].strip()]
    if args.load:
        _print(sent(drill, f"http://127.0.0.1:{args.port}"))
    elif args.reveal:
        _print(right)
    elif args.answer is not None:
        if args.answer not in drill.choices:
            letters = ", ".join(drill.choices)
            raise UserError(f"drill {drill.number} has no answer {args.answer!r}: choose {letters}")
        is_right = args.answer == drill.right
        save_record(course.root, record.with_drill(drill.mistake, is_right))
        _print(right if is_right else [f"{args.answer} is wrong: look again", *_where(drill)])
        return 0 if is_right else EXIT_FAILED
    else:
        _print(_told(drills, drill, args.port))
        flags = [*drill.serve_arguments, "--port", str(args.port)]
        return serve_with(course, drills.mistakes[drill.mistake], flags)
    return 0


def _listed(drills: Drills, answered: Mapping[str, bool]) -> Iterator[str]:
    """What became of each drill, and how its complaint begins."""
    words = {True: "solved", False: "wrong", None: ""}
    for drill in drills.drills:
        word = words[answered.get(drill.mistake)]
        yield f"{drill.number:2}  {word:6}  {drill.complaint.partition('. ')[0]}"
    num_solved = sum(answered.get(drill.mistake, False) for drill in drills.drills)
    yield f"{num_solved} of {len(drills.drills)} solved"


def _told(drills: Drills, drill: Drill, port: int) -> list[str]:
    """The complaint, what to run, where to look, and the answers."""
    own, url = f"{program()} drill {drill.number}", f"http://127.0.0.1:{port}"
    return [
        f"Drill {drill.number}. A user writes:",
        f"  {drill.complaint.strip()}",
        f"The server runs with: serve {drill.flags}",
        f"From a second terminal, send its users' requests: {own} --load --port {port}",
        f"Then look at {url} and {url}/metrics, in this order:",
        *_where(drill),
        "Which mistake is it?",
        *(f"  {letter}  {drills.says(key)}" for letter, key in drill.choices.items()),
        f"Answer with {own} --answer LETTER. Ctrl-C ends the server.",
    ]


def _where(drill: Drill) -> list[str]:
    return [f"  - {each}" for each in drill.look]


def _print(lines: Iterable[str]) -> None:
    for line in lines:
        indent = " " * (len(line) - len(line.lstrip()) + 2)
        print("\n".join(wrapped_lines(line, terminal_width(), indent)), flush=True)
