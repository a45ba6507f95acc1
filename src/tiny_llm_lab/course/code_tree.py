"""Code found in a source by symbol and syntax tree, whatever its layout, and other code put in its place.

A piece of code is an expression or a run of statements. Two are the same when their trees are: blanks, line
breaks, comments, kinds of quotes, trailing commas and redundant parentheses make no difference.
"""

import ast
import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

_CONTEXT = re.compile(r", ctx=\w+\(\)")  # a name is the same one where it is read and where it is set
_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


class Span(NamedTuple):
    """Bytes `start` to `end` of a source; `is_all` for statements without neighbours."""

    start: int
    end: int
    is_all: bool = False


def same(node: ast.AST) -> str:
    """What two pieces of code have in common when they are the same."""
    return _CONTEXT.sub("", ast.dump(node))


def expression(text: str) -> ast.expr | None:
    """The expression that a text is; None for statements."""
    if not text.strip():
        return None
    try:
        return ast.parse(f"(\n{text}\n)", mode="eval").body
    except SyntaxError:
        return None


def statements(text: str) -> list[ast.stmt]:
    """The statements that a text is. Raises SyntaxError."""
    return ast.parse(textwrap.dedent(text)).body


class CodeTree:
    """A parsed source. Raises SyntaxError for one that is no Python."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.tree = ast.parse(source)
        self._bytes = source.encode()
        ends = [0]
        for line in self._bytes.splitlines(keepends=True):
            ends.append(ends[-1] + len(line))
        self._line_starts = ends
        self._symbols: dict[str, list[Symbol]] = {}

    def symbols(self, name: str) -> list["Symbol"]:
        """The functions or classes of this name, as in "Request.try_prefill"; the whole module for ""."""
        if name not in self._symbols:
            nodes: list[ast.AST] = [self.tree]
            for part in name.split(".") if name else []:
                nodes = [each for node in nodes for each in _definitions(node) if each.name == part]
            self._symbols[name] = [Symbol(self, node) for node in nodes]
        return self._symbols[name]

    def names(self) -> Iterator[str]:
        """The functions and classes, each after those that are part of it, and at last "", the module."""
        yield from _names(self.tree)
        yield ""

    def span(self, first: ast.expr | ast.stmt, last: ast.expr | ast.stmt, is_all: bool = False) -> Span:
        """From the first byte of one node to the last one of another."""
        assert last.end_lineno is not None and last.end_col_offset is not None
        line, column = first.lineno, first.col_offset
        if isinstance(first, _Definition) and first.decorator_list:
            line = first.decorator_list[0].lineno
        end = self._line_starts[last.end_lineno - 1] + last.end_col_offset
        return Span(self._line_starts[line - 1] + column, end, is_all)

    def text(self, span: Span) -> str:
        """The source of a span, dedented."""
        line_start = self._bytes.rfind(b"\n", 0, span.start) + 1
        code = self._bytes[span.start : span.end].decode()
        return re.sub(r"\Aelif\b", "if", textwrap.dedent(" " * (span.start - line_start) + code))

    def with_expression(self, span: Span, swap: str) -> str:
        """The source with an expression instead of that at `span`."""
        return self._with(span, swap if swap.lstrip().startswith("*") else f"({swap.strip()})")

    def with_statements(self, span: Span, swap: str) -> str:
        """The source with other statements instead of those at `span`; "" for none."""
        line_start = self._bytes.rfind(b"\n", 0, span.start) + 1
        indent = " " * (span.start - line_start)
        text = textwrap.dedent(swap).strip("\n")
        if re.match(rb"elif\b", self._bytes[span.start : span.end]):
            return self._with(span, text and f"else:\n{textwrap.indent(text, indent + '    ')}")
        if not text.strip() and span.is_all:
            text = "pass"
        return self._with(span, textwrap.indent(text, indent)[len(indent) :])

    def _with(self, span: Span, text: str) -> str:
        return (self._bytes[: span.start] + text.encode() + self._bytes[span.end :]).decode()


class Symbol:
    """A function, a class or a module, and the pieces of code in it."""

    def __init__(self, tree: CodeTree, node: ast.AST) -> None:
        self._tree, self._node = tree, node

    @cached_property
    def expressions(self) -> list[tuple[str, Span]]:
        """Each with what it has in common with the same one elsewhere. Those in f-strings have no place."""
        return [(same(node), self._tree.span(node, node)) for node in _expressions(self._node)]

    def runs(self, length: int) -> Iterator[tuple[str, Span]]:
        """As `expressions`: every `length` statements in a row."""
        for block in self._blocks:
            for i in range(len(block) - length + 1):
                run = block[i : i + length]
                span = self._tree.span(run[0][1], run[-1][1], length == len(block))
                yield "\n".join(common for common, _ in run), span

    @cached_property
    def _blocks(self) -> list[list[tuple[str, ast.stmt]]]:
        own = [[self._node]] if isinstance(self._node, ast.stmt) else []
        inner = (getattr(node, name, []) for node in ast.walk(self._node) for name in _BLOCKS)
        blocks = [*own, *(block for block in inner if isinstance(block, list) and block)]
        return [[(same(node), node) for node in block] for block in blocks]


_BLOCKS = ("body", "orelse", "finalbody")


@lru_cache(maxsize=512)
def code_tree(source: str) -> CodeTree:
    """A source, parsed once."""
    return CodeTree(source)


@dataclass(frozen=True)
class Edit:
    """`find`, in the symbol of that name, becomes `swap`; raises SyntaxError where one of them is no code."""

    symbol: str
    find: str
    swap: str

    def __post_init__(self) -> None:
        if not self.is_expression:
            statements(self.find), statements(self.swap)

    @cached_property
    def is_expression(self) -> bool:
        """Whether both are expressions; else both are statements."""
        return expression(self.find) is not None and expression(self.swap) is not None

    @cached_property
    def wanted(self) -> tuple[str, int]:
        """What the code to be found has in common with `find`, and the number of its statements."""
        if self.is_expression:
            result = expression(self.find)
            assert result is not None
            return same(result), 0
        body = statements(self.find)
        return "\n".join(same(node) for node in body), len(body)

    def pieces(self, symbols: Sequence[Symbol]) -> Iterator[tuple[str, Span]]:
        """The pieces of code of the kind and length of `find`."""
        for symbol in symbols:
            yield from symbol.expressions if self.is_expression else symbol.runs(self.wanted[1])

    def places(self, source: str) -> list[Span]:
        """Where `find` occurs."""
        pieces = self.pieces(code_tree(source).symbols(self.symbol))
        return [span for common, span in pieces if common == self.wanted[0]]

    def made_at(self, source: str, span: Span) -> str:
        """The source with `swap` at this place."""
        tree = code_tree(source)
        with_ = tree.with_expression if self.is_expression else tree.with_statements
        return with_(span, self.swap)


def _expressions(node: ast.AST) -> Iterator[ast.expr]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr) and not any(isinstance(part, ast.Slice) for part in _parts(child)):
            yield child
        if not isinstance(child, ast.JoinedStr):
            yield from _expressions(child)


def _parts(node: ast.expr) -> list[ast.expr]:
    """What has to be an expression for the whole to be one: in `x[:, 0]` the index is none."""
    return node.elts if isinstance(node, ast.Tuple) else [node]


def _definitions(node: ast.AST) -> Iterator[_Definition]:
    """The functions and classes in a node, those in its branches too, but not those in one another."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, _Definition):
            yield child
        elif isinstance(child, ast.stmt | ast.ExceptHandler | ast.match_case):
            yield from _definitions(child)


def _names(node: ast.AST, before: str = "") -> Iterator[str]:
    for definition in _definitions(node):
        yield from _names(definition, f"{before}{definition.name}.")
        yield before + definition.name
