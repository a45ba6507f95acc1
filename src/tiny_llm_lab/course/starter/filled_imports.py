"""The imports that the answers bring, put where the reference has them."""

import ast
import itertools
from dataclasses import dataclass

from tiny_llm_lab.course.cutting import import_lines
from tiny_llm_lab.course.starter.definitions import Definition, Module

ImportNode = ast.Import | ast.ImportFrom


@dataclass(frozen=True)
class _Edit:
    """`code` in place of the lines `first` to `last`; they are none when last = first - 1."""

    first: int
    last: int
    code: list[str]


def with_imports(text: str, theirs: Module) -> str:
    """The file with those of the answer's imports that its code uses and does not have."""
    mine = Module(text)
    used = {node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}
    bound = {name for each in mine.of("") for name in _bound(each.node)}
    edits, behind, behind_group = list[_Edit](), _docstring_end(mine), -1
    imports = [each for each in theirs.of("") if isinstance(each.node, ImportNode)]
    for index, each in enumerate(imports):
        assert isinstance(each.node, ImportNode)
        group = _group(imports, index)
        aliases = [alias for alias in each.node.names if _alias(alias) in used - bound]
        own = mine.definitions.get(each.name)
        if own is not None and isinstance(own.node, ImportNode):
            behind, behind_group = own.last_line, group
            if aliases:
                edits.append(_Edit(own.first_line, own.last_line, _merged(own.node, each.node, aliases)))
        elif aliases:
            code, line = import_lines(each.node, aliases), behind
            if group != behind_group:
                before = _next_of_group(mine, imports, index)
                code, line = (code, before.first_line - 1) if before else (["", *code], behind)
            edits.append(_Edit(line + 1, line, code))
            behind, behind_group = line, group
    lines = list(mine.lines)
    in_order = sorted(edits, key=lambda edit: edit.first)
    for edit in reversed(in_order):
        lines[edit.first - 1 : edit.last] = edit.code
    return "\n".join(lines).rstrip() + "\n"


def _group(imports: list[Definition], index: int) -> int:
    """The number of blank lines above an import, among the imports: alike for those without one between."""
    pairs = itertools.pairwise(imports[: index + 1])
    return sum(after.first_line > before.last_line + 1 for before, after in pairs)


def _next_of_group(mine: Module, imports: list[Definition], index: int) -> Definition | None:
    later = range(index + 1, len(imports))
    group = [imports[i].name for i in later if _group(imports, i) == _group(imports, index)]
    return next((mine.definitions[name] for name in group if name in mine.definitions), None)


def _merged(own: ImportNode, other: ImportNode, added: list[ast.alias]) -> list[str]:
    """One import with the names of two, in the order of the answer's."""
    order = [_alias(alias) for alias in other.names]
    names = [*own.names, *added]
    first = sorted((alias for alias in names if _alias(alias) in order), key=lambda a: order.index(_alias(a)))
    return import_lines(own, [*first, *(alias for alias in names if _alias(alias) not in order)])


def _docstring_end(module: Module) -> int:
    first: Definition | None = next(iter(module.of("")), None)
    is_docstring = (
        first is not None and isinstance(first.node, ast.Expr) and isinstance(first.node.value, ast.Constant)
    )
    return first.last_line if first is not None and is_docstring else 0


def _alias(alias: ast.alias) -> str:
    return (alias.asname or alias.name).partition(".")[0]


def _bound(node: ast.stmt) -> set[str]:
    """The names that a top-level statement binds."""
    if isinstance(node, ast.Import | ast.ImportFrom):
        return {_alias(alias) for alias in node.names}
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {node.name}
    stored = (each for each in ast.walk(node) if isinstance(each, ast.Name))
    return {each.id for each in stored if isinstance(each.ctx, ast.Store)}
