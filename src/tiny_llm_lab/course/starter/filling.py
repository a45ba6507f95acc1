"""`stubs --fill-before W.D`: earlier days get their answers around whatever is written, and W.D comes next.

The record notes the tasks of these days: they are neither passed nor to do.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Final

from tiny_llm_lab.course.exercises import called_by, exercises, extensions
from tiny_llm_lab.course.manifest import Course, Task
from tiny_llm_lab.course.record.record import TaskSources, load_record, save_record
from tiny_llm_lab.course.record.standing import State, standing
from tiny_llm_lab.course.source import Source, is_of, kernel_answer, with_kernel_answer, without_unused
from tiny_llm_lab.course.starter.backups import keep_backup, write_texts
from tiny_llm_lab.course.starter.merging import Module, lacking, restored, with_answers, with_missing
from tiny_llm_lab.course.starter.passing import fit_own
from tiny_llm_lab.runtime.checkout import text_of
from tiny_llm_lab.runtime.console.talk import log, program

_DONE: Final = (State.PASSED, State.CHANGED)


@dataclass(frozen=True)
class Asked:
    """What filling wants of one file."""

    early: Collection[str]  # functions to give where they are stubs
    needed: Collection[str] = ()  # symbols that given answers use as a task that is to do extends them
    whole: Collection[str] = ()  # classes to give as a whole where a part doesn't fit a learner's part


@dataclass(frozen=True)
class Filled:
    """A learner's file with answers, and what became of its functions."""

    text: str
    kept: Sequence[str] = ()  # the learner's own
    replaced: Sequence[str] = ()  # those that were the learner's own
    left: Sequence[str] = ()  # stubs whose answer doesn't fit the learner's class


def filled(text: str, answer: Source, starter: str, asked: Asked) -> Filled:
    """A learner's file with the answers that are asked for; what isn't Python is replaced as a whole."""
    try:
        mine = with_missing(Source(text), Source(starter))
    except SyntaxError:
        return replace(filled(starter, answer, starter, asked), replaced=["all of it"])
    functions, before, other = mine.functions, Module(mine), Module(answer)
    there = [name for name in asked.early if name in functions]
    stubs = [name for name in there if functions[name].stub_of is not None]
    own = [name for name in there if name not in stubs and not before.is_same(other, name)]
    names = [name for name in there if name in stubs or (name in own and is_of(name, asked.needed))]
    for _ in there:
        last, names = names, _fitting(before, other, names, there, own, asked)
        if names == last:
            break
    left = [name for name in stubs if name not in names]
    replaced = [name for name in names if name in own or (name in stubs and not functions[name].is_stub)]
    # Of a class that is given as a whole nothing of its author's stays: a property would hide what is set.
    begun = {name.rpartition(".")[0] for name in replaced} - {""}
    bare = restored(mine, Source(starter), [name for name in names if is_of(name, begun)])
    result = with_answers(bare, answer, names).text if names else text
    if replaced:
        mentioned = {helper for name in replaced for helper in mine.helpers(name, answer.definitions)}
        result = without_unused(result, mentioned, Source(starter))
    if names and not own and set(Source(text).lines) <= {*answer.lines, *starter.splitlines()}:
        rest = [name for name in answer.task_of if functions[name].is_stub and name not in names]
        result = Source(answer.text).with_code_of(Source(starter), rest)
        result = without_unused(result) if rest else result
    kept = [name for name in own if name not in names]
    return Filled(result, kept, replaced, left)


def _fitting(
    before: Module,
    answer: Module,
    names: Sequence[str],
    there: Sequence[str],
    own: Sequence[str],
    asked: Asked,
) -> list[str]:
    """`names` without methods that read what the learner's class lacks, or with the whole class."""
    after, task_of = Module(with_answers(before.source, answer.source, names)), answer.source.task_of
    unfit = [*lacking(after, answer, names), *_with_new_fields(before, answer, names, own)]
    classes = {name.partition(".")[0] for name in names if "." in name}
    broken = [name for name in unfit if is_of(name, [*asked.needed, *asked.whole])]
    begun = {(task_of[name], name.partition(".")[0]) for name in own}
    broken += [name for name in unfit if (task_of[name], name.partition(".")[0]) in begun]
    broken += [name for name in own if is_of(name, classes) and after.is_stranded(name, before)]
    whole = {name.partition(".")[0] for name in broken}
    kept = set(names) - set(unfit)
    return [
        name
        for name in asked.early
        if name in kept or (is_of(name, whole) and (name in there or before.class_of(name.partition(".")[0])))
    ]


def _with_new_fields(
    before: Module, answer: Module, names: Sequence[str], own: Sequence[str]
) -> Iterator[str]:
    """Those of `names` that need fields in a class of which a learner has written methods or fields."""
    mine, listed = before.source.definitions, answer.source.definitions
    fields = [each for each in listed.values() if each.is_field and each.name not in mine]
    owners = {each.owner for each in mine.values() if each.is_field and each.name not in listed}
    closed = {
        each.name for each in fields if each.owner in owners or any(is_of(name, [each.owner]) for name in own)
    }
    return (name for name in names if closed.intersection(answer.source.helpers(name)))


def fill_before(course: Course, day: str, starter: Mapping[str, str]) -> None:
    """Give the tasks before `day` their answers. A version with replaced work of a learner's is kept."""
    before, sources = course.tasks_before(day), exercises(course)
    record, _ = load_record(course.root)
    now, own = standing(course, record), _written_by_hand(course, sources)
    to_do = [task for task in before if now.state(task) not in _DONE and task.id not in own]
    results = {
        name: filled(text_of(course.starter / name) or starter[name], source, starter[name], asked)
        for name, source in sources.items()
        for asked in [_asked(before, to_do, source)]
        if asked.early
    }
    kept = {name: keep_backup(course.starter / name).name for name, each in results.items() if each.replaced}
    texts = {name: each.text for name, each in results.items()} | _kernels(course, before, starter)
    write_texts(course.starter, texts)
    log(f"the days before {day} have their answers")
    extended = extensions(to_do, (name for each in results.values() for name in each.kept))
    own_lines = [f"yours stay as they are, without what these tasks add: {extended}"] if extended else []
    for line in chain(_lines(course, sources, results, kept), own_lines, fit_own(course)):
        log(line)
    hashes = TaskSources(course)
    save_record(course.root, record.with_given({task.id: hashes.hash_of(task) for task in before}))


def _written_by_hand(course: Course, sources: Mapping[str, Source]) -> set[str]:
    """The tasks, by id, of which no stub is left, and one function is not as in the reference."""
    mine = TaskSources(course)
    return {
        task.id
        for name, source in sources.items()
        for each, task in source.task_of.items()
        if not mine.is_same(name, source.functions[each]) and mine.is_written(task)
    }


def _asked(before: Sequence[Task], to_do: Sequence[Task], source: Source) -> Asked:
    called = called_by(before, source)
    needed = {symbol for task in to_do for symbol in task.needed}
    grown = {symbol for task in to_do for symbol in task.grows}
    return Asked(
        early=[name for name, task in source.task_of.items() if task in before or name in called],
        needed=needed & grown,
        whole=needed - grown,
    )


def _kernels(course: Course, before: Sequence[Task], starter: Mapping[str, str]) -> dict[str, str]:
    """C++ and Metal files with the parts of earlier tasks that are stubs still."""
    results = {}
    for name in {task.kernel: None for task in before if task.kernel}:
        answer = text_of(course.reference / name)
        text = text_of(course.starter / name) or starter[name]
        for task in before:
            if task.kernel == name and kernel_answer(text, task.id) == kernel_answer(starter[name], task.id):
                text = with_kernel_answer(text, answer, task.id)
        results[name] = text
    return results


def _lines(
    course: Course, sources: Mapping[str, Source], results: Mapping[str, Filled], kept: Mapping[str, str]
) -> Iterator[str]:
    """What became of a learner's functions."""
    for name, each in results.items():
        if each.replaced:
            why = "given as later days need it; your version"
            yield f"{name}: {', '.join(each.replaced)} {why} is in {kept[name]}"
        left_by_class: dict[str, list[str]] = {}
        for left in each.left:
            left_by_class.setdefault(_needed_class(sources[name], left), []).append(left)
        for owner, names in left_by_class.items():
            tasks = dict.fromkeys(sources[name].task_of[left].id for left in names)
            own = {task.id for of, task in sources[name].task_of.items() if is_of(of, [owner])}
            begun = next(task.id for task in course.tasks if task.id in own)
            yield (
                f"{', '.join(names)} ({', '.join(tasks)}) left to write: the answer needs the given "
                f"{owner}. `{program()} reset {begun}` and then this command again give you all of it"
            )


def _needed_class(source: Source, name: str) -> str:
    """Whose fields or private attributes an answer reads: for a function, of a class that it uses."""
    used = (source.definitions[each] for each in source.helpers(name))
    return name.rpartition(".")[0] or next((each.owner for each in used if each.is_field), name)
