"""The head of a function with other parameters than it has in its file, laid out as ruff does."""

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tiny_llm_lab.course.cutting import LINE_LENGTH
from tiny_llm_lab.course.source import FunctionNode, last_line


@dataclass(frozen=True)
class Change:
    """What happens to a parameter: it gets the type `before`, or with None goes."""

    before: str | None


def last_head_line(node: FunctionNode) -> int:
    """The number of the line on which the body may begin below."""
    return last_line(node.body[0]) if node.returns is None else node.returns.end_lineno or node.lineno


def head_lines(source: str, node: FunctionNode, changes: Mapping[str, Change]) -> list[str]:
    """`def name(...) -> ...:` with changed parameters."""
    return _laid_out(source, node, [text for _, text in parameters(source, node, changes)])


def _laid_out(source: str, node: FunctionNode, shown: Sequence[str]) -> list[str]:
    pad = " " * node.col_offset
    start = f"{pad}{'async ' * isinstance(node, ast.AsyncFunctionDef)}def {node.name}("
    end = f"){returned(source, node)}:"
    line = f"{start}{', '.join(shown)}{end}"
    if len(line) <= LINE_LENGTH:
        return [line]
    inner = f"{pad}    {', '.join(shown)}"
    if len(inner) <= LINE_LENGTH:
        return [start, inner, f"{pad}{end}"]
    return [start, *(f"{pad}    {each}," for each in shown), f"{pad}{end}"]


def parameters(
    source: str, node: FunctionNode, changes: Mapping[str, Change] | None = None
) -> Iterator[tuple[str, str]]:
    """The parameters after `changes`, each by its name and as it is written; the bare star is called "*"."""
    args, changes = node.args, changes or {}

    def written(arg: ast.arg, default: ast.expr | None, star: str = "") -> Iterator[tuple[str, str]]:
        change = changes.get(arg.arg)
        if change is not None and change.before is None:
            return
        kind = change.before if change else _text(source, arg.annotation)
        text = f"{star}{arg.arg}" + (f": {kind}" if kind else "")
        if default is not None:
            text += f" = {_text(source, default)}" if kind else f"={_text(source, default)}"
        yield arg.arg, text

    positional = [*args.posonlyargs, *args.args]
    without = [None] * (len(positional) - len(args.defaults))
    for arg, default in zip(positional, [*without, *args.defaults], strict=True):
        yield from written(arg, default)
    named = [each for pair in zip(args.kwonlyargs, args.kw_defaults, strict=True) for each in written(*pair)]
    if args.vararg:
        yield from written(args.vararg, None, "*")
    elif named:
        yield "*", "*"
    yield from named
    if args.kwarg:
        yield from written(args.kwarg, None, "**")


def returned(source: str, node: FunctionNode) -> str:
    """The type of the result with its arrow; "" without one."""
    return f" -> {_text(source, node.returns)}" if node.returns else ""


def _text(source: str, node: ast.expr | None) -> str:
    return (ast.get_source_segment(source, node) or "") if node else ""
