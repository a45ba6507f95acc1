"""What given answers pass to a learner's functions that these don't take yet: they get it as a parameter."""

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from tiny_llm_lab.course.exercises import (
    Growth,
    Parameter,
    exercises,
    growths,
    head_with,
    last_head_line,
    parameters,
)
from tiny_llm_lab.course.manifest import Course
from tiny_llm_lab.course.source import Function, Source, import_lines
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

    `answer` is the file of the reference. The second result tells the learner, a line for each function that
    is written.
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
            if function.is_stub:
                continue
            named = f"`{', '.join(each.written for each in added)}` (task {', '.join(passed.values())})"
            sentences.append(
                f"your {symbol} now takes {named}, which a given answer passes: ignore it until then"
            )
    if lines == text.splitlines():
        return text, []
    missing = [line for line in imports if line not in lines]
    top = next(iter(node.lineno for node in Source(text).tree.body if not isinstance(node, ast.Expr)))
    return "\n".join([*lines[: top - 1], *missing, *lines[top - 1 :]]) + "\n", sentences


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
    is_meant = called == (owner if method == "__init__" else method)
    return is_meant and (is_named or len(call.args) > place)


def fit_own(course: Course) -> Iterator[str]:
    """Add to a learner's functions the parameters of unwritten tasks that given answers pass."""
    grown, sources, package = growths(course), exercises(course), modules(course.starter)
    calls = calls_in(path.read_text(encoding="utf-8") for path in package.values())
    for name in sources.keys() & package.keys():
        before = package[name].read_text(encoding="utf-8")
        text, sentences = with_passed(before, sources[name], grown, calls)
        if text != before:
            package[name].write_text(text, encoding="utf-8")
        yield from sentences
