"""What giving earlier days' answers means for the rest: tasks that come along, and a learner's own code."""

import ast
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace

from tiny_llm_lab.course.exercises import called_by, exercises
from tiny_llm_lab.course.growth import Growth, Parameter, growths, head_with, last_head_line, parameters
from tiny_llm_lab.course.manifest import Course
from tiny_llm_lab.course.source import Function, Source, import_lines, is_of
from tiny_llm_lab.runtime.task_names import modules


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
