"""The parameters of a function, and its head with others than it has in its file, laid out as ruff does."""

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from tiny_llm_lab.course.cutting import LINE_LENGTH
from tiny_llm_lab.course.source import Function, FunctionNode, last_line


@dataclass(frozen=True)
class Change:
    """What happens to a parameter: it gets the type `before`, or with None goes."""

    before: str | None


@dataclass(frozen=True)
class Parameter:
    """A parameter as it is written; "" stands for no type and no default."""

    name: str
    kind: str = ""
    default: str = ""
    star: str = ""
    is_keyword: bool = False

    @property
    def written(self) -> str:
        kind = f": {self.kind}" if self.kind else ""
        equals = " = " if self.kind else "="
        return f"{self.star}{self.name}{kind}{equals + self.default if self.default else ''}"


def last_head_line(node: FunctionNode) -> int:
    """The number of the line on which the body may begin below."""
    return last_line(node.body[0]) if node.returns is None else node.returns.end_lineno or node.lineno


def head_lines(source: str, node: FunctionNode, changes: Mapping[str, Change]) -> list[str]:
    """`def name(...) -> ...:` with changed parameters."""
    return _laid_out(source, node, [each.written for each in parameters(source, node, changes)])


def head_with(source: str, node: FunctionNode, added: Sequence[Parameter]) -> list[str]:
    """The same with more parameters, behind those that a call may pass by position."""
    own = list(parameters(source, node))
    end = next((i for i, each in enumerate(own) if each.is_keyword), len(own))
    return _laid_out(source, node, [each.written for each in (*own[:end], *added, *own[end:])])


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
) -> Iterator[Parameter]:
    """The parameters after `changes`; a star that only parts them is called "*"."""
    args = node.args
    positional = [*args.posonlyargs, *args.args]
    without = [None] * (len(positional) - len(args.defaults))
    pairs = zip(positional, [*without, *args.defaults], strict=True)
    results = [_parameter(source, *pair) for pair in pairs]
    pairs = zip(args.kwonlyargs, args.kw_defaults, strict=True)
    named = list(_changed([_parameter(source, *pair, is_keyword=True) for pair in pairs], changes or {}))
    if args.vararg:
        results.append(_parameter(source, args.vararg, star="*", is_keyword=True))
    yield from _changed(results, changes or {})
    if named and not args.vararg:
        yield Parameter("*", is_keyword=True)
    yield from named
    if args.kwarg:
        yield from _changed([_parameter(source, args.kwarg, star="**", is_keyword=True)], changes or {})


def _parameter(
    source: str, arg: ast.arg, default: ast.expr | None = None, star: str = "", is_keyword: bool = False
) -> Parameter:
    return Parameter(arg.arg, _text(source, arg.annotation), _text(source, default), star, is_keyword)


def _changed(found: Sequence[Parameter], changes: Mapping[str, Change]) -> Iterator[Parameter]:
    for each in found:
        change = changes.get(each.name)
        if change is None:
            yield each
        elif change.before is not None:
            yield replace(each, kind=change.before)


def one_line(source: str, function: Function) -> str:
    """The head of a function, with the class before the name of a method."""
    written = ", ".join(each.written for each in parameters(source, function.node))
    return f"def {function.name}({written}){returned(source, function.node)}"


def returned(source: str, node: FunctionNode) -> str:
    """The type of the result with its arrow; "" without one."""
    return f" -> {_text(source, node.returns)}" if node.returns else ""


def _text(source: str, node: ast.expr | None) -> str:
    """The code of an expression; the standard library's function splits the whole source each time."""
    if node is None or node.end_lineno is None:
        return ""
    lines = [line.encode() for line in _lines(source)[node.lineno - 1 : node.end_lineno]]
    lines[-1] = lines[-1][: node.end_col_offset]
    return b"\n".join([lines[0][node.col_offset :], *lines[1:]]).decode()


@lru_cache(maxsize=256)
def _lines(source: str) -> list[str]:
    return source.splitlines()
