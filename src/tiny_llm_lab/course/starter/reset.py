"""`reset TASK`: the functions of a task become the starter's again; the rest of their files stays."""

from argparse import ArgumentParser, Namespace
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from tiny_llm_lab.course.exercises import exercises, extensions
from tiny_llm_lab.course.manifest import Course, Task, load_course
from tiny_llm_lab.course.record.record import TaskSources, load_record, save_record
from tiny_llm_lab.course.source import Source, cut_kernel, is_of, parsed, with_kernel_answer, without_unused
from tiny_llm_lab.course.starter.backups import backups, keep_backup
from tiny_llm_lab.course.starter.merging import Module, lacking, restored, with_answers
from tiny_llm_lab.course.starter.passing import fit_own
from tiny_llm_lab.course.starter.stubs import starter
from tiny_llm_lab.runtime.checkout import text_of
from tiny_llm_lab.runtime.console.talk import program, say
from tiny_llm_lab.types import UserError

HELP = "Turn the functions of a task or day into stubs again; a backup stays, and --undo brings them back."
EXAMPLES = (
    ("2.7.3", "start this task again; the rest of its file stays"),
    ("2.7.3 --undo", "take back the answer that the last reset removed"),
)


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("task", metavar="TASK", help="a task such as 2.7.3, or a day such as 2.7")
    what = "take the task's functions from the newest backup that has an answer"
    parser.add_argument("--undo", action="store_true", help=what)


def run(args: Namespace) -> int:
    course = load_course()
    tasks = course.tasks_of(args.task)
    own = [task for task in tasks if task.symbols or task.also or task.kernel]
    if not own:
        named = ", ".join(name for task in tasks for name in task.grows)
        raise UserError(f"task {args.task} only extends {named}: reset the task that owns it")
    for task in own:
        reset_task(course, task, args.undo)
    return 0


def reset_task(course: Course, task: Task, is_undone: bool = False) -> None:
    versions = _answered(course, task) if is_undone else [*_python(course, task), *_kernel(course, task)]
    texts = {name: text for name, text in versions if text != text_of(course.starter / name)}
    if not texts:
        none = "no other answer in a backup" if is_undone else "only stubs, so there is nothing to reset"
        print(f"task {task.id} has {none}")
        return
    before = {other.id for other in course.tasks if TaskSources(course).is_written(other)}
    for name, text in texts.items():
        path = course.starter / name
        path.touch()
        backup = keep_backup(path)
        path.write_text(text, encoding="utf-8")
        symbols = task.symbols_in(name) or task.symbols  # of a kernel, those of the whole task
        how = "restored; what was there" if is_undone else "to do again; your version"
        say(f"src/tiny_llm/{name}: {', '.join(symbols)} {how} is in {backup.name}")
    _note(course, task, before)
    own = [name for each in exercises(course).values() for name, of in each.task_of.items() if of == task]
    named = extensions((other for other in course.tasks if other.id in before), own)
    if named and not is_undone:
        say(f"extend again, or `{program()} stubs --fill-before` a later day, what these tasks grow: {named}")


def _note(course: Course, task: Task, written_before: Collection[str]) -> None:
    """Make `task` the one to do, and not those whose given answers went with it."""
    for line in fit_own(course):
        say(line)
    sources, (record, _) = TaskSources(course), load_record(course.root)
    along = [
        other
        for other in course.tasks
        if other.id in written_before and other != task and not sources.is_written(other)
    ]
    if named := [each.id for each in along if sources.has_own_parts(each)]:
        say(
            f"{', '.join(named)} to do again as well: the given answers work only with the one that you reset"
        )
    given = {each.id: sources.hash_of(each) for each in along}
    save_record(course.root, record.with_given(given | {task.id: ""}))


def _without_answers(text: Source, names: Collection[str], starter: Source) -> Source:
    """A learner's file with the functions `names` as in the starter's, and no own fields in their classes."""
    own, listed = text.functions, text.definitions.values()
    begun = {each.owner for each in listed if each.is_field and each.name not in starter.definitions}
    stubs = {name for name in own if own[name].is_stub and not is_of(name, begun)}
    return restored(text, starter, [name for name in names if name not in stubs])


def _python(course: Course, task: Task) -> Iterator[tuple[str, str]]:
    for file in task.files:
        source, pristine = exercises(course)[file], Source(starter(course)[file])
        ids = [name for name, of in source.task_of.items() if of == task]
        mine = parsed(file, text_of(course.starter / file) or pristine.text)
        along = _along(mine, _without_answers(mine, ids, pristine), source, ids)
        bare = _without_answers(mine, [*ids, *along], pristine)
        yield file, _without_helpers(mine, bare, pristine, [*ids, *along])


def _along(text: Source, bare: Source, answer: Source, names: Collection[str]) -> set[str]:
    """The given functions that work on the given answers alone, which `bare` no longer has."""
    mine, theirs = Module(text), Module(answer)
    methods = [name for name in answer.task_of if name not in names and "." in name]
    return set(lacking(Module(bare), theirs, [name for name in methods if mine.is_same(theirs, name)]))


def _without_helpers(text: Source, bare: Source, starter: Source, names: Collection[str]) -> str:
    """`bare` without what only the functions `names` of `text` used; the starter where that is all."""
    helpers = {helper for name in names for helper in text.helpers(name, starter.definitions)}
    result = without_unused(bare.text, helpers, starter)
    rest = Source(result).definitions.keys() - starter.definitions.keys()
    is_bare = all(each.is_stub for each in Source(result).functions.values())
    return starter.text if is_bare and not rest else result


def _kernel(course: Course, task: Task) -> Sequence[tuple[str, str]]:
    if not task.kernel:
        return []
    text = text_of(course.starter / task.kernel) or starter(course)[task.kernel]
    if f"BEGIN task {task.id}" not in text:
        raise UserError(f"src/tiny_llm/{task.kernel} has lost its line `BEGIN task {task.id}`: put it back")
    return [(task.kernel, cut_kernel(text, task.kernel.endswith(".metal"), {task.id}.__contains__))]


def _answered(course: Course, task: Task) -> Iterator[tuple[str, str]]:
    """The task's files with its functions as in the newest backup that has another answer than now."""
    for file, stubs in [*_python(course, task), *_kernel(course, task)]:
        path = course.starter / file
        current = text_of(path)
        versions = (_with_answer(course, task, file, current, backup) for backup in reversed(backups(path)))
        known = [_code(stubs), _code(current)]
        if other := next((text for text in versions if _code(text) not in known), None):
            yield file, other


def _code(text: str) -> list[str]:
    """The lines, as they count here: in any order, because imports may come back in another one."""
    return sorted(filter(None, text.splitlines()))


def _with_answer(course: Course, task: Task, file: str, current: str, backup: Path) -> str:
    text = backup.read_text(encoding="utf-8")
    if file == task.kernel:
        return with_kernel_answer(current, text, task.id)
    kept, own = parsed(backup.name, text), parsed(file, current)
    owned = exercises(course)[file].task_ids()
    written = [name for name, each in kept.functions.items() if not each.is_stub]
    return with_answers(own, kept, [name for name in written if owned.get(name) == task.id]).text
