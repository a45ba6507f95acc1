"""Files and names that docs/structure.md mentions: each has to exist in the sources."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tiny_llm_lab.course.book.page import Page

_CODE = re.compile(r"`([^`]+)`")
_NAME = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*")
_FILE = re.compile(r"[\w*.\-]+(?:/[\w*.\-]*)*")
_SUFFIXES = (".py", ".h", ".cpp", ".metal", ".toml", ".md", ".svg", ".js", ".json", ".yml", ".cfg", "/")
# A path may be short: below the package that the table is about.
_ROOMS = ("types", "runtime", "serving", "measure", "course", "cli")
_ROOTS = ("", "src", "src/tiny_llm_ref", "src/tiny_llm_lab", *(f"src/tiny_llm_lab/{room}" for room in _ROOMS))
_PACKAGES = ("src/tiny_llm_ref", "src/tiny_llm_lab")


@dataclass
class Names:
    """What the sources define: all names, and of each class its members and bases."""

    defined: set[str] = field(default_factory=set)
    members: dict[str, set[str]] = field(default_factory=dict)
    bases: dict[str, list[str]] = field(default_factory=dict)

    def has(self, name: str) -> bool:
        """Whether `name`, or `Class.member` with inherited members, is defined."""
        owner, _, member = name.rpartition(".")
        if owner in self.members:
            return self._is_member(owner, member)
        return all(part in self.defined for part in name.split("."))

    def _is_member(self, owner: str, member: str) -> bool:
        bases = self.bases.get(owner, [])
        return member in self.members.get(owner, ()) or any(self._is_member(base, member) for base in bases)


def name_problems(page: Page, root: Path) -> list[str]:
    """Files of a page that do not exist, names behind a file that it lacks, and names defined nowhere."""
    names = defined_names(root)
    return [
        f"{page.name}:{number}: there is no {missing}"
        for number, line in enumerate(page.text.splitlines(), 1)
        for missing in _missing(line, names, root)
    ]


def _missing(line: str, names: Names, root: Path) -> Iterator[str]:
    file: Path | None = None
    folders: list[Path] = []  # a file's name may stand alone behind its folder's
    for match in _CODE.finditer(line):
        word = match[1]
        if _is_file(word):
            files = _existing(word, [*(root / base for base in _ROOTS), *folders])
            file = files[0] if len(files) == 1 and files[0].is_file() else None
            folders += [path if path.is_dir() else path.parent for path in files]
            if not files:
                yield f"file {word}"
        elif _NAME.fullmatch(word) and not (names.has(word) and (file is None or _is_in(word, file))):
            yield f"{word} in {file.relative_to(root)}" if file else word
        if line[match.end() :].startswith((";", ".", ":")):
            file = None  # another thought begins


def defined_names(root: Path) -> Names:
    """The names of the Python and C++ sources, packages and modules included."""
    names = Names()
    for package in _PACKAGES:
        names.defined.add(Path(package).name)
        for path in (root / package).rglob("*"):
            if path.suffix == ".py":
                names.defined.update((path.stem, path.parent.name))
                _collect(ast.parse(path.read_text(encoding="utf-8")), names)
            elif path.suffix in (".h", ".cpp", ".metal"):
                names.defined.update(re.findall(r"[A-Za-z_]\w*", path.read_text(encoding="utf-8")))
    return names


def _collect(tree: ast.Module, names: Names) -> None:
    names.defined |= _bound(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            names.members.setdefault(node.name, set()).update(_bound(node) - {node.name})
            names.bases.setdefault(node.name, []).extend(
                base.id for base in node.bases if isinstance(base, ast.Name) and base.id != node.name
            )


def _bound(tree: ast.AST) -> set[str]:
    """The names of classes, functions, parameters and variables, those of the environment included."""
    names = set()
    for node in ast.walk(tree):
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.arg(arg=name):
                names.add(name)
            case ast.AsyncFunctionDef(name=name):
                names.add(name)
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                names.add(name)
            case ast.Constant(value=str(name)) if name.startswith("TINY_LLM_"):
                names.add(name)
    return names


def _is_file(word: str) -> bool:
    return _FILE.fullmatch(word) is not None and (word.endswith(_SUFFIXES) or "/" in word)


def _existing(word: str, folders: list[Path]) -> list[Path]:
    return sorted({path for folder in folders for path in folder.glob(word.rstrip("/"))})


def _is_in(name: str, file: Path) -> bool:
    text = file.read_text(encoding="utf-8")
    return all(re.search(rf"\b{part}\b", text) for part in name.split("."))
