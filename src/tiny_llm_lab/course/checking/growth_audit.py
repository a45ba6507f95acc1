"""Checks that the starter shows each function as its own week needs it, and that course.toml is right."""

import ast
import re
from collections.abc import Iterator, Mapping, Sequence

from tiny_llm_lab.course.growth import Growth, additions, growths, growths_of, in_starter
from tiny_llm_lab.course.manifest import Course, Task
from tiny_llm_lab.course.signature import parameters
from tiny_llm_lab.course.source import Function, Source, is_of
from tiny_llm_lab.types import UserError

_LATER = re.compile(r"(?:\b(?:from|until|since|before)\s+|\()(?:day|task|week)\s+(?P<week>\d)\b")


def growth_faults(course: Course, sources: Mapping[str, Source]) -> Iterator[str]:
    """Everything that is wrong with `adds`, `widens` and the additions in docstrings, one line each."""
    try:
        grown = growths(course)
    except UserError as error:
        yield str(error)
        return
    functions = {name: (function, s) for s in sources.values() for name, function in s.functions.items()}
    for task in course.tasks:
        for growth in growths_of(task):
            if growth.symbol not in functions:
                yield f"task {task.id}: {_said(growth)}: this function does not exist"
            else:
                yield from _listed_faults(course, task, growth, grown, *functions[growth.symbol])
    for source in sources.values():
        for name, task in source.task_of.items():
            yield from _text_faults(course, task, source.functions[name])
        yield from _early_faults(course, source, grown, _weeks_of_classes(sources))


def _listed_faults(
    course: Course, task: Task, growth: Growth, grown: Sequence[Growth], function: Function, source: Source
) -> Iterator[str]:
    about = f"task {task.id}: {_said(growth)}"
    if not is_of(growth.symbol, task.grows):
        yield f"{about}: add {growth.symbol} to its grows"
    found = {each.name: each for each in parameters(source.text, function.node)}
    if growth.parameter not in found:
        yield f"{about}: the reference does not have this parameter"
        return
    if growth.before is not None:
        return
    if not found[growth.parameter].default:
        yield f"{about}: it needs a default, or earlier days' code cannot call the function"
    order = [each.id for each in course.tasks]
    since = {each.parameter: order.index(each.task) for each in grown if _adds_to(each, growth.symbol)}
    behind = list(found)[list(found).index(growth.parameter) + 1 :]
    for name in behind:
        if not found[name].is_keyword and since.get(name, -1) < order.index(task.id):
            yield f"{about}: it moves {name}, which calls may pass by position: put it after that"


def _text_faults(course: Course, task: Task, function: Function) -> Iterator[str]:
    """What the docstring of the reference says of tasks that add something."""
    docstring = ast.get_docstring(function.node) or ""
    order = [each.id for each in course.tasks]
    for id_, _ in additions(docstring):
        about = f"{function.name}: its docstring says what task {id_} adds"
        if id_ not in order or order.index(id_) <= order.index(task.id):
            yield f"{about}, which is not later than {task.id}"
        elif not is_of(function.name, course.task(id_).grows):
            yield f"{about}, which does not list it in its grows"


def _early_faults(
    course: Course, source: Source, grown: Sequence[Growth], weeks: Mapping[str, int]
) -> Iterator[str]:
    """What the starter of an early week shows of later ones."""
    added = {(each.parameter, kind): each.task for each, kind in _kinds(grown, source)}
    starter = Source(in_starter(source.text, grown))
    for name, task in source.task_of.items():
        function, week, about = starter.functions[name], _week(task.id), f"{name} of task {task.id}"
        for match in _LATER.finditer(ast.get_docstring(function.node) or ""):
            if int(match["week"]) > week:
                said = " ".join(match[0].split())
                yield f'{about}: its starter says "{said}": begin a line with "From task W.D.N on"'
        for each in parameters(starter.text, function.node):
            later = [used for used in _names(each.kind) if weeks.get(used, 0) > week]
            if later:
                yield f"{about}: its parameter {each.name} needs {later[0]} of week {weeks[later[0]]}"
            elif _week(added.get((each.name, each.kind), task.id)) > week:
                by = added[each.name, each.kind]
                yield f"{about}: its parameter {each.name} is one that task {by} adds elsewhere"


def _kinds(grown: Sequence[Growth], source: Source) -> Iterator[tuple[Growth, str]]:
    """The parameters that tasks add to the functions of a file, with their types."""
    for each in grown:
        if each.before is None and each.symbol in source.functions:
            found = {p.name: p.kind for p in parameters(source.text, source.functions[each.symbol].node)}
            if each.parameter in found:
                yield each, found[each.parameter]


def _weeks_of_classes(sources: Mapping[str, Source]) -> dict[str, int]:
    """The first week in which a task writes something of a class."""
    weeks: dict[str, int] = {}
    for source in sources.values():
        for name, task in source.task_of.items():
            owner = name.partition(".")[0]
            weeks[owner] = min(weeks.get(owner, 9), _week(task.id))
    return weeks


def _adds_to(growth: Growth, symbol: str) -> bool:
    return growth.symbol == symbol and growth.before is None


def _names(kind: str) -> set[str]:
    return set(re.findall(r"[A-Za-z_]\w*(?!\w|\.)", re.sub(r"\b\w+\.\w+|\"[^\"]*\"|'[^']*'", "", kind)))


def _week(task_id: str) -> int:
    return int(task_id.partition(".")[0])


def _said(growth: Growth) -> str:
    if growth.before is None:
        return f"adds {growth.symbol}({growth.parameter})"
    return f"widens {growth.symbol}({growth.parameter}: {growth.before})"
