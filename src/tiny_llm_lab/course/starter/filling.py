"""Giving stubs their answers in a file that a learner may have worked on: only stubs change."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from tiny_llm_lab.course.source import Source
from tiny_llm_lab.course.starter.definitions import Module, is_stub
from tiny_llm_lab.course.starter.filled_imports import with_imports


@dataclass(frozen=True)
class Filled:
    """A file after filling.

    `filled` got their answers; `kept` are a learner's own and stay as they are; `clashing` stay stubs,
    each for the learner's own private name, which the answer defines in another way.
    """

    text: str
    filled: tuple[str, ...]
    kept: tuple[str, ...]
    clashing: dict[str, str]


def fill_stubs(text: str, answer: str, wanted: Collection[str]) -> Filled:
    """A learner's file in which the functions `wanted` that are stubs, or missing, have their answers.

    Private helpers, constants and imports that these answers need come along. `answer` is the reference's
    file with the functions that are not to be told cut. Raises SyntaxError for a file that is not Python.
    """
    mine, theirs = Module(text), Module(answer)
    functions = Source(text).functions
    stubs = [name for name in wanted if name not in functions or is_stub(functions[name])]
    clashing = {name: clash for name in stubs for clash in _clashes(name, mine, theirs)}
    filled = tuple(name for name in stubs if name not in clashing)
    others = [name for name in wanted if name not in stubs]
    kept = tuple(n for n in others if mine.definitions[n].meaning != theirs.definitions[n].meaning)
    new = _with_definitions(mine, theirs, filled) if filled else text
    return Filled(with_imports(new, theirs) if filled else text, filled, kept, clashing)


def _clashes(name: str, mine: Module, theirs: Module) -> Iterator[str]:
    for helper in theirs.helpers(name):
        own = mine.definitions.get(helper)
        if own is not None and own.meaning != theirs.definitions[helper].meaning:
            yield helper


def _with_definitions(mine: Module, theirs: Module, names: Collection[str]) -> str:
    needed = {helper for name in names for helper in theirs.helpers(name)}
    # A method of a class that is missing comes with its class.
    needed |= {owner for name in names if (owner := name.rpartition(".")[0])}
    missing = {name for name in [*needed, *names] if name not in mine.definitions}
    swaps = {
        (own.first_line, own.last_line): theirs.code(name)
        for name in names
        if (own := mine.definitions.get(name)) is not None
    }
    # Classes before the module: what follows a class in the file follows its last method.
    for owner in (*(each.name for each in theirs.of("") if each.name in mine.definitions), ""):
        for line, code in _insertions(mine, theirs, owner, missing):
            swaps[line + 1, line] = [*swaps.get((line + 1, line), []), *code]
    lines = list(mine.lines)
    for (first, last), code in sorted(swaps.items(), reverse=True):
        lines[first - 1 : last] = code
    return "\n".join(lines).rstrip() + "\n"


def _insertions(
    mine: Module, theirs: Module, owner: str, missing: Collection[str]
) -> Iterator[tuple[int, list[str]]]:
    """The missing definitions of a class or the module, each behind the line where it belongs."""
    siblings, anchor = theirs.of(owner), _first_line(mine, owner)
    for before, each, after in zip([None, *siblings], siblings, [*siblings[1:], None], strict=False):
        own = mine.definitions.get(each.name)
        if own is not None:
            anchor = own.last_line
        elif each.name in missing:
            # With the blank lines and comments that stand above it.
            begin = _first_line(theirs, owner) if before is None else before.last_line
            code = theirs.lines[begin : each.last_line]
            own = (
                mine.definitions.get(after.name) if after and after.first_line == each.last_line + 1 else None
            )
            if own is not None and not code[0].strip():
                yield own.first_line - 1, code[1:]
            else:
                yield anchor, code


def _first_line(module: Module, owner: str) -> int:
    """The line behind which the body of a class begins; 0 for the module."""
    body = module.of(owner)
    return body[0].first_line - 1 if owner and body else 0
