"""The starter: src/tiny_llm is src/tiny_llm_ref with the bodies of all tasks cut.

`stubs --fill-before W.D` gives the days before W.D their answers. The record notes these tasks: they are
neither passed nor to do. Given answers have tasks that come along, and may call a learner's own code.
"""

import argparse
import ast
import itertools
import re
import shutil
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from tiny_llm_lab.course.exercises import (
    Growth,
    Parameter,
    called_by,
    exercises,
    growths,
    head_with,
    in_starter,
    last_head_line,
    parameters,
)
from tiny_llm_lab.course.manifest import Course, load_course
from tiny_llm_lab.course.record.record import TaskSources, load_record, save_record
from tiny_llm_lab.course.source import (
    KERNEL_SUFFIXES,
    Function,
    Source,
    cut_kernel,
    cut_kernels,
    import_lines,
    is_of,
    starter_source,
    without_unused,
)
from tiny_llm_lab.runtime.checkout import text_of
from tiny_llm_lab.runtime.console.program import program
from tiny_llm_lab.runtime.console.talk import log, plural
from tiny_llm_lab.runtime.task_names import modules
from tiny_llm_lab.types import UserError


def calls_in(texts: Iterable[str]) -> list[ast.Call]:
    """Every call in some Python files; a file that is not Python has none."""
    results = []
    for text in texts:
        try:
            results += [node for node in ast.walk(Source(text).tree) if isinstance(node, ast.Call)]
        except SyntaxError:
            continue
    return results


def with_passed(
    text: str, answer: Source, grown: Sequence[Growth], calls: Sequence[ast.Call]
) -> tuple[str, list[str]]:
    """A learner's file whose functions have the new parameters of `grown` that `calls` pass.

    `answer` is the file of the reference. The second result tells the learner, a line for each function.
    """
    lines, sentences, imports = text.splitlines(), list[str](), dict[str, None]()
    try:
        own = Source(text).functions
    except SyntaxError:
        return text, []
    for symbol, function in reversed(own.items()):
        passed = {
            each.parameter: each.task
            for each in grown
            if each.symbol == symbol
            and each.before is None
            and each.parameter not in function.parameter_names
            if any(_passes(call, each, answer.functions[symbol]) for call in calls)
        }
        last = function.node.lineno if function.node.returns is None else last_head_line(function.node)
        # A head that does not end with its line stays as it is; the failing test says what to add.
        if passed and lines[last - 1].rstrip().endswith(":"):
            of_answer = parameters(answer.text, answer.functions[symbol].node)
            added = [replace(each, kind="") for each in of_answer if each.name in passed]
            head = head_with(text, function.node, added)
            lines[function.node.lineno - 1 : last] = head
            imports |= dict.fromkeys(_imports(answer, added))
            named = f"`{', '.join(each.written for each in added)}` (task {', '.join(passed.values())})"
            sentences.append(
                f"your {symbol} now takes {named}, which a given answer passes: ignore it until then"
            )
    if not sentences:
        return text, []
    top = next(iter(node.lineno for node in Source(text).tree.body if not isinstance(node, ast.Expr)))
    return "\n".join([*lines[: top - 1], *imports, *lines[top - 1 :]]) + "\n", sentences


def _imports(answer: Source, added: Sequence[Parameter]) -> list[str]:
    """What the defaults of some parameters need."""
    defaults = {each.default for each in added}
    return [
        line
        for node in answer.tree.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.name in defaults
        for line in import_lines(node, [alias])
    ]


def _passes(call: ast.Call, growth: Growth, function: Function) -> bool:
    owner, _, method = growth.symbol.rpartition(".")
    called = getattr(call.func, "id", getattr(call.func, "attr", None))
    is_named = any(each.arg == growth.parameter for each in call.keywords)
    if method == "__call__":
        return is_named  # an object is called by whatever name it has
    place = function.parameter_names.index(growth.parameter) - bool(owner)
    is_meant = called == method or (method == "__init__" and called == owner)
    return is_meant and (is_named or len(call.args) > place)


def come_along(course: Course, day: str, names: Collection[str]) -> Iterator[str]:
    """A line for each task of `day` that extends given functions in the files `names`, final as these are."""
    sources = exercises(course)
    given = {
        function
        for name in names
        for function, owner in (sources[name].task_of if name in sources else {}).items()
        if course.is_later(day, owner.day_id)
    }
    for task in course.day(day).tasks:
        grown = [each for each in task.grows if any(is_of(name, [each]) for name in given)]
        if grown:
            rest = "" if task.symbols or task.also or task.kernel else ": nothing is left to write"
            yield f"task {task.id} comes with the functions that it extends, {', '.join(grown)}{rest}"


def to_extend(
    course: Course, day: str, own: Collection[str], written: Collection[str]
) -> dict[str, list[str]]:
    """What tasks before `day`, by id, extend in a learner's files `own`; not those that are written."""
    sources = exercises(course)
    functions = [function for name in own for function in sources[name].task_of]
    results = {
        task.id: [each for each in task.grows if any(is_of(name, [each]) for name in functions)]
        for task in course.tasks_before(day)
        if task.id not in written
    }
    return {id_: names for id_, names in results.items() if names}


def called_along(course: Course, day: str) -> Iterator[str]:
    """A line for each later task of which functions are given, because answers before `day` call them."""
    before = course.tasks_before(day)
    for source in exercises(course).values():
        called = called_by(before, source)
        for task in (task for task in course.tasks if task not in before):
            if names := [name for name, owner in source.task_of.items() if owner == task and name in called]:
                yield f"{', '.join(names)} of task {task.id}: given as well, because given answers call it"


def fit_own(course: Course, day: str, given: Collection[str]) -> Iterator[str]:
    """Add to a learner's functions the parameters of tasks from `day` on that given answers pass."""
    early = {task.id for task in course.tasks_before(day)}
    grown = [each for each in growths(course) if each.task not in early]
    package, sources = modules(course.starter), exercises(course)
    calls = calls_in(path.read_text(encoding="utf-8") for path in package.values())
    for name in sources.keys() & package.keys() - given:
        text, sentences = with_passed(package[name].read_text(encoding="utf-8"), sources[name], grown, calls)
        if sentences:
            package[name].write_text(text, encoding="utf-8")
            yield from sentences


HELP = "Generate the starter src/tiny_llm from the reference, check it, or fill in the days before yours."
EXAMPLES = (
    ("--fill-before 2.7", "fill in the answers of all days before 2.7, to begin the course there"),
    ("--check", "list the files of the starter that are out of date"),
)


_TODO = re.compile(r'"task [\d.]+"')


def add_arguments(parser: argparse.ArgumentParser) -> None:
    modes = parser.add_mutually_exclusive_group()
    modes.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a file is stale")
    modes.add_argument("--force", action="store_true", help="also replace edited files; keeps *.backup1")
    what = "write the answers of all earlier days; refuses files that you edited"
    modes.add_argument("--fill-before", metavar="W.D", help=what)


def run(args: argparse.Namespace) -> int:
    course = load_course()
    if args.fill_before is not None:
        return fill_before(course, args.fill_before)
    wanted, stale = starter(course), stale_files(course)
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
    for name in stale:
        path = course.starter / name
        if name in edited:
            path.rename(free_name(path))
        if name not in wanted:
            path.unlink(missing_ok=True)
    _write(course, {name: wanted[name] for name in stale if name in wanted})
    print(f"wrote {len(stale)} of {len(wanted)} files of src/tiny_llm", file=sys.stderr)
    return 0


def fill_before(course: Course, day: str) -> int:
    """`stubs --fill-before`. Raises UserError and writes nothing where it would replace a learner's work."""
    wanted = starter(course)
    written, texts = written_tasks(course), given_files(course, day, wanted)
    current = {name: text for name in texts if (text := text_of(course.starter / name))}
    # We leave a file without a stub that would go alone, whoever wrote it.
    left = [
        name
        for name, text in current.items()
        if not Counter(_TODO.findall(text)) - Counter(_TODO.findall(texts[name]))
    ]
    whole = {name: texts.pop(name) for name in left}
    sources, days = exercises(course), course.days[: [each.id for each in course.days].index(day)]
    given = [given_files(course, each.id, wanted, sources) for each in days]
    as_given = [name for name in texts if any(each.get(name) == current.get(name) for each in given)]
    others = [name for name in texts if name in current and name not in as_given]
    if edited := [name for name in others if not is_untouched(course.starter / name, wanted[name])]:
        raise UserError(
            f"{', '.join(edited)} in src/tiny_llm has your edits and stubs of earlier days: commit and "
            f"delete it, move it, or `{program()} reset` its tasks"
        )
    for name in others:
        if current[name] != wanted[name]:
            kept = keep_backup(course.starter / name).name
            log(f"{name} was not as in the starter: that version is in {kept}")
    _write(course, texts)
    log(f"wrote {plural(len(texts), 'file')} of src/tiny_llm: the days before {day} have their answers")
    own = [name for name in left if current[name] not in (whole[name], *(each.get(name) for each in given))]
    extending = to_extend(course, day, own, written)
    for line in [*come_along(course, day, texts), *called_along(course, day), *fit_own(course, day, texts)]:
        log(line)
    for task, names in extending.items():
        log(f"task {task} extends {', '.join(names)}: yours, left alone, so that is still to do")
    note_given(course, day, written | extending.keys())
    return 0


def _write(course: Course, texts: Mapping[str, str]) -> None:
    for name, text in texts.items():
        path = course.starter / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


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
    # We remove a file that is no longer in the reference, unless a learner made it.
    left_over = [name for name in present if name not in wanted and is_untouched(course.starter / name)]
    return changed + left_over


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


def _without_ids(text: str) -> str:
    return re.sub(r'NotImplementedError\("task [^"]*"\)', "NotImplementedError", text)


def backups(path: Path) -> list[Path]:
    """NAME.backup1, NAME.backup2, ... as far as they exist, the oldest first."""
    names = (path.with_name(f"{path.name}.backup{number}") for number in itertools.count(1))
    return list(itertools.takewhile(Path.exists, names))


def free_name(path: Path) -> Path:
    """The first of NAME.backup1, NAME.backup2, ... that does not exist."""
    return path.with_name(f"{path.name}.backup{len(backups(path)) + 1}")


def keep_backup(path: Path) -> Path:
    """Copy a file next to itself; returns the copy."""
    return Path(shutil.copyfile(path, free_name(path)))


def given_files(
    course: Course, day: str, starter: Mapping[str, str], sources: Mapping[str, Source] | None = None
) -> dict[str, str]:
    """The files of the tasks before `day`: their answers, and the stubs of `starter` for all other tasks."""
    before = course.tasks_before(day)
    early, result = {task.id for task in before}, {}
    for name, source in (sources or exercises(course)).items():
        called = called_by(before, source)
        later = [each for each, id_ in source.task_ids().items() if id_ not in early and each not in called]
        if len(later) < len(source.task_of):
            text = Source(source.text).with_code_of(Source(starter[name]), later)
            result[name] = without_unused(text) if later else text
    kernels = cut_kernels(course.reference / "kernels", lambda task: task not in early)
    named = {f"kernels/{name}": text for name, text in kernels.items()}
    return result | {name: text for name, text in named.items() if text != starter[name]}


def written_tasks(course: Course) -> set[str]:
    """The ids of all tasks of which no stub is left."""
    sources = TaskSources(course)
    return {task.id for task in course.tasks if sources.is_written(task)}


def note_given(course: Course, day: str, written_before: Collection[str]) -> None:
    """Note the tasks before `day` that are written now and were not before: their answers were given."""
    sources = TaskSources(course)
    given = {
        task.id: sources.hash_of(task)
        for task in course.tasks_before(day)
        if task.id not in written_before and sources.is_written(task)
    }
    if given:
        save_record(course.root, load_record(course.root)[0].with_given(given))
