"""Checks that the manifest is complete and true, without running anything."""

from collections import Counter
from collections.abc import Iterator, Sequence

from tiny_llm_lab.course.exercises import exercises, reference_sources
from tiny_llm_lab.course.manifest import Course, Mistake, Task
from tiny_llm_lab.course.source import Function, Source, is_of, kernel_answer, kernel_names, last_line
from tiny_llm_lab.runtime.checkout import text_of
from tiny_llm_lab.types import UserError

# `lines` is an expected size, not a count, so we complain only if it is misleading.
_MISLEADING_FACTOR, _MISLEADING_LINES = 1.5, 5
# A wrong value, a wrong place, a missing case. With fewer we hardly test a task's tests.
_MIN_MISTAKES = 3


def complaints(course: Course) -> list[str]:
    """Everything that is wrong with course.toml and known_mistakes.toml."""
    try:
        sources, mistakes = exercises(course), course.mistakes()
    except UserError as error:
        return [str(error)]
    owner_of = {symbol: task for source in sources.values() for symbol, task in source.task_of.items()}
    measured = answer_lines(course)
    return [
        *(f"task {t.id}: {fault}" for t in course.tasks for fault in _faults(course, t, measured[t.id])),
        *(f"task {t.id}: {fault}" for t in course.tasks for fault in _growth_faults(course, t, owner_of)),
        *_count_faults(course, mistakes),
        *(fault for mistake in mistakes for fault in _mistake_faults(course, mistake)),
    ]


def answer_lines(course: Course) -> dict[str, int]:
    """Lines of code in the reference's answer to each task, with the private helpers it brings."""
    counts = {
        task.id: _num_code_lines(
            (kernel_answer(text_of(course.reference / task.kernel), task.id) or "").splitlines()
        )
        for task in course.tasks
    }
    order = [task.id for task in course.tasks]
    for source in reference_sources(course).values():
        counted, module = set[str](), Source(source.text)
        for name, task in sorted(source.task_of.items(), key=lambda item: order.index(item[1].id)):
            helpers = [each for each in [name, *module.helpers(name)] if each not in counted]
            counted.update(helpers)
            counts[task.id] += sum(
                _size(source.functions[each], source) for each in helpers if each in source.functions
            )
    return counts


def _faults(course: Course, task: Task, measured: int) -> Iterator[str]:
    if not task.symbols and not task.grows:
        yield "it needs symbols or grows: add one"
    if task.kernel and kernel_answer(text_of(course.reference / task.kernel), task.id) is None:
        yield (f"{task.kernel} has an empty part `BEGIN task {task.id}`: write the answer there")
    elif not task.file and (names := kernel_names(text_of(course.reference / task.kernel), task.id)) != list(
        task.symbols
    ):
        yield f"its symbols are {list(task.symbols)}, but the marks in {task.kernel} are in {names}"
    if not task.hints or not all(hint.strip() for hint in task.hints):
        yield 'it needs a hint: add hints = ["..."]'
    if not course.test_files([task]):
        yield "no test has its mark: add one with @pytest.mark.task"
    if task.lines < 1:
        yield f"it needs the length of its answer: add lines = {measured or 5}"
    elif task.symbols and not task.grows and _misleads(task.lines, measured):
        yield f"lines = {task.lines}, but the reference's answer has {measured}: correct it"


def _growth_faults(course: Course, task: Task, owner_of: dict[str, Task]) -> Iterator[str]:
    order = [each.id for each in course.tasks]
    for name in task.grows:
        grown = [each for symbol, each in owner_of.items() if symbol == name or symbol.startswith(f"{name}.")]
        if not grown:
            yield f"grows {name!r}, which no task owns: correct the name"
        elif all(order.index(each.id) >= order.index(task.id) for each in grown):
            yield f"grows {name!r}, which is not from an earlier task: correct the name"
    for name in task.calls:
        called = [each for symbol, each in owner_of.items() if is_of(symbol, [name])]
        if not any(order.index(each.id) > order.index(task.id) for each in called):
            yield f"calls {name!r}, which is not of a later task: correct the name"


def _misleads(stated: int, measured: int) -> bool:
    low, high = sorted((stated, measured))
    return high > low * _MISLEADING_FACTOR and high - low > _MISLEADING_LINES


def _count_faults(course: Course, mistakes: Sequence[Mistake]) -> Iterator[str]:
    counts = Counter(mistake.task for mistake in mistakes)
    for task in course.tasks:
        if counts[task.id] < _MIN_MISTAKES:
            yield (
                f"task {task.id}: tests/known_mistakes.toml has {counts[task.id]} of its mistakes, "
                f"fewer than {_MIN_MISTAKES}: add one that its tests reject"
            )


def _mistake_faults(course: Course, mistake: Mistake) -> Iterator[str]:
    try:
        course.task(mistake.task)
        mistake.apply(course.reference / mistake.file)
    except UserError as error:
        yield str(error)


def _size(function: Function, source: Source) -> int:
    body = source.text.splitlines()[function.first_body_line - 1 : last_line(function.node)]
    # The learner writes a helper's signature too.
    return _num_code_lines(body) + (not function.is_public)


def _num_code_lines(lines: list[str]) -> int:
    return sum(1 for line in lines if line.strip() and not line.lstrip().startswith(("#", "//")))
