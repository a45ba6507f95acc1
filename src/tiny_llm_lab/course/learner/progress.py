"""`progress`: write the record of grading as a page."""

import argparse
from pathlib import Path

from tiny_llm_lab.course.learner.progress_page import progress_page
from tiny_llm_lab.course.record.desk import open_desk
from tiny_llm_lab.runtime.console.talk import log
from tiny_llm_lab.types import UserError

HELP = "Write your progress as one HTML page: days and tasks, when each passed, and the share that has."
EXAMPLES = (("", "writes out/progress.html"), ("~/progress.html", "writes another file"))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "out",
        nargs="?",
        type=Path,
        default=Path("out/progress.html"),
        metavar="FILE",
        help="the page (default: %(default)s); one that is there is replaced",
    )


def run(args: argparse.Namespace) -> int:
    desk = open_desk()
    out = args.out if args.out.is_absolute() else desk.course.root / args.out
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(progress_page(desk), encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot write {args.out}: {error.strerror}: name another file") from None
    log(f"{desk.standing.num_passed} of {len(desk.course.tasks)} tasks passed")
    print(out)
    return 0
