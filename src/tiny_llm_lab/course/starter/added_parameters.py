"""Parameters of later tasks that given answers pass, added to a learner's functions, which ignore them."""

import ast
from collections.abc import Iterable, Sequence

from tiny_llm_lab.course.growth import Growth
from tiny_llm_lab.course.signature import head_lines_with, last_head_line
from tiny_llm_lab.course.source import Function, Source, parameter_names
from tiny_llm_lab.course.starter.definitions import Module
from tiny_llm_lab.course.starter.filled_imports import with_imports


def calls_in(texts: Iterable[str]) -> list[ast.Call]:
    """Every call in some Python files."""
    return [node for text in texts for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]


def with_parameters(
    text: str, answer: str, grown: Sequence[Growth], calls: Sequence[ast.Call]
) -> tuple[str, list[str]]:
    """A learner's file in which the functions of `grown` have those new parameters that `calls` pass.

    `answer` is the file of the reference. A head that has no line of its own stays as it is. The second
    result tells the learner, a line for each function.
    """
    lines, said = text.splitlines(), list[str]()
    theirs = Source(answer).functions
    for symbol, own in reversed(Source(text).functions.items()):
        passed = {
            each.parameter: each.task
            for each in grown
            if each.symbol == symbol and each.before is None and each.parameter not in parameter_names(own)
            if any(_passes(call, each, theirs[symbol]) for call in calls)
        }
        if not passed:
            continue
        head = head_lines_with(text, own.node, passed, answer, theirs[symbol].node)
        about = f"{', '.join(passed)} (task {', '.join(sorted(set(passed.values())))})"
        last = last_head_line(own.node)
        if own.node.returns is not None and last < own.node.body[0].lineno:
            lines[own.node.lineno - 1 : last] = head
            said.append(f"your {symbol} now takes {about}, which the given code passes: ignore it until then")
        else:
            shown = " ".join(map(str.strip, head)).replace("( ", "(").replace(", )", ")")
            said.append(f"the given code passes {about} to your {symbol}: write `{shown}`")
    return (with_imports("\n".join(lines) + "\n", Module(answer)) if said else text), said


def _passes(call: ast.Call, growth: Growth, function: Function) -> bool:
    owner, _, method = growth.symbol.rpartition(".")
    called = getattr(call.func, "id", getattr(call.func, "attr", None))
    if method != "__call__" and called not in ((owner, method) if method == "__init__" else (method,)):
        return False  # an object is called by whatever name it has
    place = parameter_names(function).index(growth.parameter) - bool(owner)
    is_named_only = growth.parameter in {arg.arg for arg in function.node.args.kwonlyargs}
    is_by_place = len(call.args) > place and not is_named_only
    return is_by_place or any(each.arg == growth.parameter for each in call.keywords)
