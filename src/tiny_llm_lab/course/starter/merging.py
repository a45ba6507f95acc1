"""Answers put into a learner's file: functions with their helpers and imports, around what is there."""

import ast
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from tiny_llm_lab.course.source import Definition, Source, import_lines, leads_up
from tiny_llm_lab.runtime.task_names import is_private

_Import = ast.Import | ast.ImportFrom
_Named = tuple[_Import, ast.alias]


@dataclass(frozen=True)
class Module:
    """A Python file: what its names are bound to, and what the methods of its classes find on an object."""

    source: Source

    @cached_property
    def imports(self) -> Mapping[str, _Named]:
        """By the name that it binds, each import at the top."""
        nodes = [node for node in self.source.tree.body if isinstance(node, _Import)]
        return {alias.asname or alias.name.partition(".")[0]: (n, alias) for n in nodes for alias in n.names}

    @cached_property
    def mentioned(self) -> frozenset[str]:
        """Every name that the file defines or uses."""
        defined = [each.names for each in self.source.definitions.values()]
        used = [each.mentions for each in self.source.definitions.values()]
        return frozenset[str]().union(*defined, *used, self.imports)

    def state(self, owner: str, without: Collection[str] = ()) -> set[str]:
        """What an object of a class of this file has: attributes that methods set first, fields, and methods.

        Those of base classes in this file too, but not of the functions `without`. "" stands for all classes.
        A method that reads an attribute and then sets it needs another one that has set it before.
        """
        listed = self.source.definitions
        if not owner:
            classes = [each.name for each in listed.values() if isinstance(each.node, ast.ClassDef)]
            return set[str]().union(*(self.state(each, without) for each in classes))
        if owner not in listed:
            return set()
        inner = [each for each in listed.values() if each.owner == owner and each.name not in without]
        bases = [each.id for each in getattr(listed[owner].node, "bases", ()) if isinstance(each, ast.Name)]
        # Of an attribute the last pair stays, which is its first use.
        first = [{use.attr: is_read for use, is_read in [*_uses(each.node)][::-1]} for each in inner]
        stored = {name for uses in first for name, is_read in uses.items() if not is_read}
        return stored.union(*(each.names for each in inner), *(self.state(each, without) for each in bases))

    def class_of(self, name: str) -> ast.ClassDef | None:
        """The class of this name, if it is written in this file."""
        node = self.source.definitions[name].node if name in self.source.definitions else None
        return node if isinstance(node, ast.ClassDef) else None

    def has(self, wanted: Definition, starter: Source) -> bool:
        """Whether it has a definition of the starter in any form: also imported, generated or inherited.

        A class that is imported, or another name of one, has all methods.
        """
        if wanted.name in self.source.definitions or not wanted.owner:
            return wanted.name in self.source.definitions or wanted.names <= self.imports.keys()
        own, theirs = self.class_of(wanted.owner), Module(starter).class_of(wanted.owner)
        if own is None or theirs is None:
            return True
        bases = {ast.unparse(each) for each in own.bases} - {ast.unparse(each) for each in theirs.bases}
        is_inherited = any(self.class_of(each) is None or wanted.names <= self.state(each) for each in bases)
        return is_inherited or (
            wanted.names == {"__init__"} and "dataclass" in map(ast.unparse, ast.walk(own))
        )

    def reads(self, name: str) -> set[str]:
        """The attributes of `self` that a method and its helpers read; of a function, the private ones."""
        nodes = [self.source.definitions[each].node for each in (name, *self.source.helpers(name))]
        found = [each for node in nodes for each, is_read in _uses(node) if is_read]
        return {
            each.attr
            for each in found
            if (getattr(each.value, "id", "") == "self" if "." in name else each.attr.startswith("_"))
        }

    def is_stranded(self, name: str, before: "Module") -> bool:
        """Whether a method of `before` reads there what no method sets here."""
        owner = name.rpartition(".")[0]
        known = before.state(owner)
        read = {each for each in before.reads(name) if each in known or is_private(each)}
        return bool(read - self.state(owner))

    def is_same(self, other: "Module", name: str) -> bool:
        """Whether both files define a name with the same code."""
        both = [each.source.definitions.get(name) for each in (self, other)]
        return None not in both and len({ast.unparse(each.node) for each in both if each}) == 1


def _uses(node: ast.AST, is_changed: bool = False) -> Iterator[tuple[ast.Attribute, bool]]:
    """Its attributes in about the order of their evaluation, and whether each is read, as in `x += 1`."""
    targets = getattr(node, "targets", [getattr(node, "target", None)])
    for child in sorted(ast.iter_child_nodes(node), key=targets.__contains__):
        yield from _uses(child, isinstance(node, ast.AugAssign) and child in targets)
    if isinstance(node, ast.Attribute):
        yield node, is_changed or isinstance(node.ctx, ast.Load)


def lacking(mine: Module, answer: Module, names: Collection[str]) -> list[str]:
    """Those of `names`, functions as in `answer`, that read what the rest of `mine` doesn't provide.

    Public attributes are what a chapter asks for: an `__init__` that is still to write will provide them.
    """
    results = []
    helpers = {name for each in answer.source.definitions.values() if each.is_private for name in each.names}
    methods = {name.rpartition(".")[2] for name in answer.source.functions}
    brought = {*names, *(helper for name in names for helper in answer.source.helpers(name))}
    brought -= {name for name in answer.source.functions if name.endswith(".__init__")}
    for name in names:
        owner = name.rpartition(".")[0]
        init = mine.source.functions.get(f"{owner}.__init__")
        there = mine.state(owner, brought) | helpers | methods
        missing = (answer.reads(name) & answer.state(owner, brought)) - there
        if any(is_private(each) or init is None or not init.is_stub for each in missing):
            results.append(name)
    return results


def with_missing(mine: Source, starter: Source) -> Source:
    """`mine` with the functions, classes and constants of the starter that it has in no form."""
    for each in starter.definitions.values():
        if not isinstance(each.node, _Import | ast.Expr) and not Module(mine).has(each, starter):
            mine = _put(mine, starter, each, {})
    return mine


def restored(mine: Source, starter: Source, names: Collection[str]) -> Source:
    """`mine` with the functions `names` as in the starter, and a class of which no other is written."""
    listed = starter.definitions
    for each in (listed[name] for name in names):
        is_in_place = not each.owner or Module(mine).class_of(each.owner)
        mine = _put(mine, starter, each if is_in_place else listed[each.owner], {})
    for owner in {listed[name].owner for name in names} - {""}:
        inner = [mine.functions.get(each.name) for each in starter.functions.values() if each.owner == owner]
        if all(each is not None and each.is_stub for each in inner):
            mine = _put(mine, starter, listed[owner], {})
    return mine


def with_answers(mine: Source, answer: Source, names: Collection[str]) -> Source:
    """`mine` with these functions, which it has, as in `answer`, and with what they need of that file.

    What `mine` uses a helper's or an import's name for keeps it: the new one is called `..._given`.
    """
    own, other = Module(mine), Module(answer)
    helpers = {helper for name in names for helper in answer.helpers(name)}
    listed = answer.definitions.values()
    new = [each for each in listed if each.name in helpers and not own.is_same(other, each.name)]
    pieces = [answer.definitions[name] for name in names] + new
    inner = [each for each in listed if each.owner in {piece.name for piece in new}]
    used = frozenset[str]().union(*(each.mentions for each in (*pieces, *inner)))
    needed = {name: each for name, each in other.imports.items() if name in used}
    bound = {name for each in mine.definitions.values() if not each.owner for name in each.names}
    foreign = {
        name for name, each in needed.items() if name in bound or not _may_share(own.imports.get(name), each)
    }
    clashing = {name for each in new for name in each.names & own.mentioned}
    renamed = {name: _free(name, own.mentioned | other.mentioned) for name in clashing | foreign}
    result = mine
    for name in names:
        result = _put(result, answer, answer.definitions[name], renamed)
    for each in reversed(new):
        if each.owner not in helpers:  # the rest comes with its class
            result = _put(result, answer, each, renamed, is_new=True)
    added = [
        line
        for name, (node, alias) in needed.items()
        if name in foreign or name not in own.imports
        for line in import_lines(node, [ast.alias(alias.name, renamed.get(name, alias.asname))])
    ]
    return _with_imports(result, added)


def _may_share(own: _Named | None, needed: _Named) -> bool:
    """Whether there is no such import, or one of the same: `from .basics` and `from a.basics import f`."""
    modules = [(getattr(each[0], "module", "") or "").rpartition(".")[2] for each in (own, needed) if each]
    return own is None or (own[1].name == needed[1].name and modules[0] == modules[1])


def _free(name: str, taken: Collection[str]) -> str:
    while (name := f"{name}_given") in taken:
        pass
    return name


def _put(
    mine: Source, answer: Source, each: Definition, renamed: Mapping[str, str], is_new: bool = False
) -> Source:
    """`mine` with a definition of `answer` in place of its own, or where the order of `answer` has it."""
    text = "\n".join(answer.lines[leads_up(answer.lines, each.first_line) - 1 : each.last_line])
    for old, new in renamed.items():
        text = re.sub(rf"\b{old}\b" if old.startswith("_") else rf"(?<![\w.]){old}\b", new, text)
    lines, piece, own = list(mine.lines), text.split("\n"), mine.definitions.get(each.name)
    if own and not is_new:
        lines[own.first_line - 1 : own.last_line] = piece[-(each.last_line - each.first_line + 1) :]
        return Source("\n".join(lines) + "\n")
    order = list(answer.definitions.values())
    behind = [x.name for x in order[order.index(each) + 1 :] if x.owner == each.owner]
    at = next((mine.definitions[name] for name in behind if name in mine.definitions), None)
    space = [""] * (1 if each.owner else 2)
    if at is not None:
        start = leads_up(lines, at.first_line) - 1
        lines[start:start] = [*piece, *space]
    else:
        end = mine.definitions[each.owner].last_line if each.owner else len(lines)
        lines[end:end] = [*space, *piece]
    return Source("\n".join(lines) + "\n")


def _with_imports(mine: Source, added: Sequence[str]) -> Source:
    """`mine` with more imports below its first one, or its docstring."""
    first = [each for each in mine.tree.body if isinstance(each, _Import)][:1]
    docstring = [each for each in mine.tree.body[:1] if isinstance(each, ast.Expr)]
    at = next((each.end_lineno or 0 for each in (*first, *docstring)), 0)
    return Source("\n".join([*mine.lines[:at], *added, *mine.lines[at:]]) + "\n") if added else mine
