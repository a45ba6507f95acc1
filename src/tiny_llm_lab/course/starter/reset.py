"""`reset TASK`: the functions of one task become stubs again; the rest of their files stays as it is."""

from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path

from tiny_llm_lab.course.exercises import Growth, exercises, growths
from tiny_llm_lab.course.manifest import Course, Task, load_course
from tiny_llm_lab.course.record.standing import named_task
from tiny_llm_lab.course.source import Source, cut_bodies, cut_kernel, parsed, with_kernel_answer
from tiny_llm_lab.course.starter.stubs import backups, keep_backup, starter
from tiny_llm_lab.runtime.console.talk import terminal_width, wrapped_lines
from tiny_llm_lab.types import UserError

HELP = "Turn one task's functions into stubs again; a backup stays, and --undo brings them back."
EXAMPLES = (
    ("2.7.3", "start this task again; the rest of its file stays"),
    ("2.7.3 --undo", "take back the answer that the last reset removed"),
)


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("task", metavar="TASK", help="the task, such as 2.7.3")
    what = "take the task's functions from the newest backup that has an answer"
    parser.add_argument("--undo", action="store_true", help=what)


def run(args: Namespace) -> int:
    course = load_course()
    task = named_task(course, args.task)
    if not (task.symbols or task.also or task.kernel):
        raise UserError(f"task {task.id} only extends {', '.join(task.grows)}: reset the task that owns it")
    versions = _answered(course, task) if args.undo else [*_python(course, task), *_kernel(course, task)]
    texts = {
        name: text for name, text in versions if text != (course.starter / name).read_text(encoding="utf-8")
    }
    if not texts:
        none = "no other answer in a backup" if args.undo else "only stubs, so there is nothing to reset"
        print(f"task {task.id} has {none}")
    for name, text in texts.items():
        path = course.starter / name
        backup = keep_backup(path)
        path.write_text(text, encoding="utf-8")
        symbols = task.symbols_in(name) or task.symbols  # of a kernel, those of the whole task
        how = "restored; what was there" if args.undo else "to do again; your version"
        line = f"src/tiny_llm/{name}: {', '.join(symbols)} {how} is in {backup.name}"
        print("\n".join(wrapped_lines(line, terminal_width())))
    return 0


def without_answers(text: str, ids: dict[str, str], pristine: str, grown: Sequence[Growth] = ()) -> str:
    """A learner's file with the functions in `ids` (name -> task) cut; `pristine` is the starter's file.

    A function to which the learner has added parameters keeps its signature. Others get the starter's, and so
    do those with no more than what later tasks add, `grown`. Raises SyntaxError for what is not Python.
    """
    mine, theirs = Source(text), Source(pristine)
    functions, originals = mine.functions, theirs.functions
    missing = [name for name in ids if name not in functions]
    if missing:
        raise UserError(f"{', '.join(missing)} is missing: write its signature, or take the file from git")
    open_ = [name for name in ids if not functions[name].is_stub]
    of_course = {(each.symbol, each.parameter) for each in grown}
    extended = [
        name
        for name in open_
        for own in [set(functions[name].parameter_names) - set(originals[name].parameter_names)]
        if any((name, parameter) not in of_course for parameter in own)
    ]
    swapped = mine.with_code_of(theirs, set(open_) - set(extended))
    return cut_bodies(swapped, {name: ids[name] for name in extended})


def _python(course: Course, task: Task) -> Iterator[tuple[str, str]]:
    for file in task.files:
        text = _existing(course.starter / file).read_text(encoding="utf-8")
        owned = exercises(course)[file].task_ids()
        ids = {name: id_ for name, id_ in owned.items() if id_ == task.id}
        parsed(file, text)
        yield file, without_answers(text, ids, starter(course)[file], growths(course))


def _kernel(course: Course, task: Task) -> Sequence[tuple[str, str]]:
    if not task.kernel:
        return []
    text = _existing(course.starter / task.kernel).read_text(encoding="utf-8")
    if f"BEGIN task {task.id}" not in text:
        raise UserError(f"src/tiny_llm/{task.kernel} has lost its line `BEGIN task {task.id}`: put it back")
    return [(task.kernel, cut_kernel(text, task.kernel.endswith(".metal"), {task.id}.__contains__))]


def _existing(path: Path) -> Path:
    if not path.exists():
        raise UserError(f"{path.name} is missing in src/tiny_llm: get the starter's with `git restore`")
    return path


def _answered(course: Course, task: Task) -> Iterator[tuple[str, str]]:
    """The task's files with its functions as in the newest backup that has another answer than now."""
    for file, stubs in [*_python(course, task), *_kernel(course, task)]:
        path = course.starter / file
        current = path.read_text(encoding="utf-8")
        versions = (_with_answer(course, task, file, current, backup) for backup in reversed(backups(path)))
        if other := next((text for text in versions if text not in (stubs, current)), None):
            yield file, other


def _with_answer(course: Course, task: Task, file: str, current: str, backup: Path) -> str:
    text = backup.read_text(encoding="utf-8")
    if file == task.kernel:
        return with_kernel_answer(current, text, task.id)
    kept = parsed(backup.name, text)
    owned = exercises(course)[file].task_ids()
    names = [name for name in kept.functions if owned.get(name) == task.id]
    return parsed(file, current).with_code_of(kept, names)
