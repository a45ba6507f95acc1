"""`check --rebase`: moves known mistakes whose code has changed to the new code."""

import ast
import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from functools import lru_cache
from pathlib import Path

from tiny_llm_lab.course.code_tree import CodeTree, Span, code_tree, expression, same, statements
from tiny_llm_lab.course.manifest import Course, Mistake, mistakes_in
from tiny_llm_lab.runtime.checkout import text_of
from tiny_llm_lab.runtime.task_names import modules
from tiny_llm_lab.types import UserError

_ALIKE = 0.7  # at this similarity, one piece of code may be the other's new form
_ALIKE_ELSEWHERE = 0.85  # outside of the symbol, if that still exists
_CLEARLY = 0.05  # more alike than the next one
_KEPT = 0.3  # if a swap is less similar to its find than this, it keeps nothing of it
_TOKEN = re.compile(r"\w+|\s+|[^\w\s]")
_NAME = re.compile(r"[A-Za-z_]\w*")


def rebase(course: Course) -> Iterator[str]:
    """Fix tests/known_mistakes.toml; a line for each mistake that did not fit, `left` or `moved`."""
    own_files = {task.id: task.file for task in course.tasks}
    path, package = course.root / "tests" / "known_mistakes.toml", course.reference
    # A table for each mistake, with what follows it up to the next one.
    text = text_of(path)
    tables = re.split(r"(?m)^(?=\[\[)", text)
    for i, table in enumerate(tables):
        for mistake in mistakes_in(tomllib.loads(table), path.name, own_files):
            if _fits(mistake, package):
                continue
            about = f"{mistake.task}  {mistake.says}"
            moved = _moved(mistake, package)
            if moved is None:
                yield f"left   {about}"
                continue
            tables[i] = written(moved, own_files) + _tail(table)
            yield f"moved  {about}: {moved.find!r} -> {moved.swap!r}"
    if "".join(tables) != text:
        path.write_text("".join(tables), encoding="utf-8")


def written(mistake: Mistake, own_files: Mapping[str, str]) -> str:
    """The table of a mistake of Python in its file."""
    place = f"{mistake.file}:{mistake.symbol}".rstrip(":")
    if mistake.symbol and mistake.file == own_files.get(mistake.task):
        place = mistake.symbol
    name = place if re.fullmatch(r"\w+", place, re.ASCII) else json.dumps(place)
    lines = [f"[[{json.dumps(mistake.task)}.{name}]]"]
    lines += [f"{key} = {_string(getattr(mistake, key))}" for key in ("says", "find", "swap")]
    return "\n".join(lines) + "\n"


def _string(text: str) -> str:
    if "\n" in text.strip() and "'''" not in text:
        stripped = text.strip("\n")
        return f"'''\n{stripped}\n'''"
    if re.search(r'["\\]', text) and not re.search(r"['\n]", text):
        return f"'{text}'"
    return json.dumps(text, ensure_ascii=False)


def _tail(table: str) -> str:
    """The blank lines and comments at the end of a table."""
    lines = table.splitlines(keepends=True)
    end = max(i for i, line in enumerate(lines) if line.strip() and not line.startswith("#"))
    return "".join(lines[end + 1 :])


def _fits(mistake: Mistake, package: Path) -> bool:
    try:
        mistake.apply(package / mistake.file)
    except UserError:
        return False
    return True


@dataclass(frozen=True)
class _Piece:
    """Code that a `find` may have become."""

    file: str
    symbol: str
    span: Span
    text: str
    alike: float


def _moved(mistake: Mistake, package: Path) -> Mistake | None:
    """The mistake at its code's new place; None if that is not clear."""
    if not mistake.file.endswith(".py"):
        return None
    trees = {name: code_tree(text_of(path)) for name, path in modules(package).items()}
    own = {name: tree for name, tree in trees.items() if name == mistake.file}
    with_symbol = {name: tree for name, tree in trees.items() if tree.symbols(mistake.symbol)}
    everywhere = own or trees
    if mistake.symbol and with_symbol:
        there = own if mistake.file in with_symbol else with_symbol
        piece = _most_alike(mistake, there, [mistake.symbol], _ALIKE)
        piece = piece or _most_alike(mistake, everywhere, [], _ALIKE_ELSEWHERE)
    else:
        piece = _most_alike(mistake, everywhere, [], _ALIKE)
    swap = None if piece is None else same_edit(_normal(mistake.find), _normal(mistake.swap), piece.text)
    if piece is None or swap is None:
        return None
    moved = replace(mistake, file=piece.file, symbol=piece.symbol, find=piece.text, swap=swap)
    return moved if moved.find != moved.swap and _fits(moved, package) else None


def _most_alike(
    mistake: Mistake, trees: Mapping[str, CodeTree], symbols: list[str], least: float
) -> _Piece | None:
    """The piece most like `find` in these symbols, or all for none; None without one that is clearly so."""
    pieces = sorted(_pieces(mistake, trees, symbols), key=lambda piece: -piece.alike)
    for piece in pieces[1:]:
        is_apart = piece.file != pieces[0].file or not _overlap(piece.span, pieces[0].span)
        if is_apart and piece.alike > pieces[0].alike - _CLEARLY:
            return None
    return pieces[0] if pieces and pieces[0].alike > least else None


def _pieces(mistake: Mistake, trees: Mapping[str, CodeTree], symbols: list[str]) -> Iterator[_Piece]:
    wanted = _normal(mistake.find)
    for file, tree in trees.items():
        seen: set[Span] = set()
        for name in symbols or tree.names():  # inner symbols first
            for _, span in mistake.edit.pieces(tree.symbols(name)):
                if span in seen:
                    continue
                seen.add(span)
                text = _normal(tree.text(span))
                matcher = SequenceMatcher(None, wanted, text, autojunk=False)
                if matcher.real_quick_ratio() > _ALIKE and matcher.quick_ratio() > _ALIKE < matcher.ratio():
                    yield _Piece(file, name, span, text, matcher.ratio())


@lru_cache(maxsize=100_000)
def _normal(text: str) -> str:
    """Code in one layout."""
    node = expression(text)
    body: list[ast.expr] | list[ast.stmt] = statements(text) if node is None else [node]
    plain = "\n".join(map(ast.unparse, body))
    # The project's quotes, if that makes no difference.
    quoted = plain if '"' in plain else plain.replace("'", '"')
    try:
        return quoted if list(map(same, statements(quoted))) == list(map(same, statements(plain))) else plain
    except SyntaxError:
        return plain


def _overlap(one: Span, other: Span) -> bool:
    return one.start < other.end and other.start < one.end


def same_edit(find: str, swap: str, new: str) -> str | None:
    """What becomes of `new` by the edit that makes `swap` of `find`; None where they meet."""
    old, wrong, now = (_TOKEN.findall(text) for text in (find, swap, new))
    changed = _in_context(old) - _in_context(now)
    changed_names = {name for _, name, _ in changed if _NAME.fullmatch(name)}
    edit = SequenceMatcher(None, old, wrong, autojunk=False)
    if edit.ratio() < _KEPT:
        return None if changed_names & set(wrong) else swap
    kept = {-1: -1, len(old): len(now)}
    for a, b, size in SequenceMatcher(None, old, now, autojunk=False).get_matching_blocks():
        kept |= {a + i: b + i for i in range(size)}
    for tag, i, j, k, m in reversed(edit.get_opcodes()):
        if tag == "equal":
            continue
        # What it changes, with two tokens on either side.
        around = range(max(i - 2, -1), min(j + 2, len(old) + 1))
        start = kept.get(i - 1, -2) + 1
        is_kept = all(kept.get(each) == start + each - i for each in around)
        if not is_kept or changed_names & set(wrong[k:m]):
            return None
        now[start : start + j - i] = wrong[k:m]
    return "".join(now)


def _in_context(tokens: list[str]) -> set[tuple[str, str, str]]:
    return set(zip(["", *tokens], tokens, [*tokens[1:], ""], strict=False))
