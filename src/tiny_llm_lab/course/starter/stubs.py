"""The starter: src/tiny_llm is src/tiny_llm_ref with the bodies of all tasks cut."""

import argparse
import ast
import re
import sys
from pathlib import Path

from tiny_llm_lab.course.exercises import exercises, growths, in_starter
from tiny_llm_lab.course.manifest import Course, load_course
from tiny_llm_lab.course.source import KERNEL_SUFFIXES, STUB, Source, cut_kernel, cut_kernels, starter_source
from tiny_llm_lab.course.starter.backups import free_name, write_texts
from tiny_llm_lab.course.starter.filling import fill_before
from tiny_llm_lab.runtime.checkout import text_of
from tiny_llm_lab.runtime.task_names import modules
from tiny_llm_lab.types import UserError

HELP = "Generate the starter src/tiny_llm from the reference, check it, or fill in the days before yours."
EXAMPLES = (
    ("--fill-before 2.7", "fill in the answers of all days before 2.7, to begin the course there"),
    ("--check", "list the files of the starter that are out of date"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    modes = parser.add_mutually_exclusive_group()
    modes.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a file is stale")
    modes.add_argument("--force", action="store_true", help="also replace edited files; keeps *.backup1")
    what = "write the answers of all earlier days; what you have written stays"
    modes.add_argument("--fill-before", metavar="W.D", help=what)


def run(args: argparse.Namespace) -> int:
    course = load_course()
    wanted, stale = starter(course), stale_files(course)
    if args.fill_before is not None:
        fill_before(course, args.fill_before, wanted)
        return 0
    if args.check:
        for name in stale:
            print(f"src/tiny_llm/{name} is stale: run ./pdmw run stubs", file=sys.stderr)
        return 1 if stale else 0
    own = [name for name in stale if name not in course.given]
    edited = [name for name in own if not is_untouched(course.starter / name, wanted.get(name))]
    if edited and not args.force:
        raise UserError(
            f"{', '.join(edited)} in src/tiny_llm has your edits, which this would replace: "
            "run ./pdmw run stubs --force, which keeps a backup"
        )
    kept = []
    for name in stale:
        path = course.starter / name
        is_lost = name not in wanted or not _lines(text_of(path)) <= _lines(wanted[name])
        if path.exists() and (name in edited or is_lost):
            kept.append(path.rename(free_name(path)).name)
    write_texts(course.starter, {name: wanted[name] for name in stale if name in wanted})
    about = f"; kept {', '.join(kept)}" if kept else ""
    print(f"wrote {len(stale)} of {len(wanted)} files of src/tiny_llm{about}", file=sys.stderr)
    return 0


def starter(course: Course) -> dict[str, str]:
    """Every file of the pristine starter, by its path in the package."""
    grown = growths(course)
    files = {
        name: source.text
        if name in course.given
        else source.text.replace("the answers", "yours", 1)
        if name.endswith("__init__.py")
        else starter_source(in_starter(source.text, grown), source.task_ids())
        for name, source in exercises(course).items()
    }
    kernels = cut_kernels(course.reference / "kernels")
    return files | {f"kernels/{name}": text for name, text in kernels.items()}


def stale_files(course: Course) -> list[str]:
    """Files of src/tiny_llm that generating would write or remove."""
    wanted = starter(course)
    changed = [name for name, text in wanted.items() if text_of(course.starter / name) != text]
    present = list(modules(course.starter))
    # We remove a file that is no longer in the reference, unless a learner made it. A stub says that we did.
    left_over = {name: course.starter / name for name in present if name not in wanted}
    ours = [name for name, path in left_over.items() if STUB.search(text_of(path)) and is_untouched(path)]
    return changed + ours


def is_untouched(path: Path, wanted: str | None = None) -> bool:
    """Whether a file holds nothing of a learner's that is not in `wanted`, what it should be.

    Cutting an untouched file once more changes nothing, and what cutting keeps (a type, a constant) is
    in `wanted` too.
    """
    text = text_of(path)
    if not text.strip():
        return True
    if path.suffix in KERNEL_SUFFIXES:
        return cut_kernel(text, path.suffix == ".metal") == text
    source = Source(text)
    try:
        tree = source.tree
    except SyntaxError:
        return False
    if path.name == "__init__.py":
        return all(isinstance(node, ast.ImportFrom | ast.Assign | ast.Expr) for node in tree.body)
    if not _assignments(tree) <= _assignments(ast.parse(wanted or "")):
        return False
    # Tasks may have been renumbered since the file was written.
    return _without_ids(starter_source(text, dict.fromkeys(source.functions, "?"))) == _without_ids(text)


def _assignments(tree: ast.Module) -> set[str]:
    return {ast.unparse(node) for node in tree.body if isinstance(node, ast.Assign | ast.AnnAssign)}


def _lines(text: str) -> set[str]:
    return set(_without_ids(text).splitlines()) | {""}


def _without_ids(text: str) -> str:
    return re.sub(r'NotImplementedError\("task [^"]*"\)', "NotImplementedError", text)
