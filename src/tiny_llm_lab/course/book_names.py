"""Files and names that docs/structure.md mentions: each has to exist in the sources."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

_CODE = re.compile(r"`([^`]+)`")
_NAME = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*")
_FILE = re.compile(r"[\w*.\-]+(?:/[\w*.\-]*)*")
_SUFFIXES = (".py", ".h", ".cpp", ".metal", ".toml", ".md", ".svg", "/")
# A path may be short: below the package that the table is about.
_ROOTS = ("", "src", "src/tiny_llm_ref", "src/tiny_llm_lab")
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


def name_problems(page: Path, root: Path) -> list[str]:
    """Files of a page that do not exist, names behind a file that it lacks, and names defined nowhere."""
    names = defined_names(root)
    found = []
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        file: Path | None = None
        folders: list[Path] = []  # a file's name may stand alone behind its folder's
        for match in _CODE.finditer(line):
            word = match[1]
            if _is_file(word):
                files = _existing(word, [*(root / base for base in _ROOTS), *folders])
                file = files[0] if len(files) == 1 and files[0].is_file() else None
                folders += [path if path.is_dir() else path.parent for path in files]
                if not files:
                    found.append(f"{page.name}:{number}: there is no file {word}")
            elif _NAME.fullmatch(word):
                is_there = names.has(word) if file is None else names.has(word) and _is_in(word, file)
                if not is_there:
                    place = f" in {file.relative_to(root)}" if file else ""
                    found.append(f"{page.name}:{number}: there is no {word}{place}")
            if line[match.end() :].startswith((";", ".", ":")):
                file = None  # another thought begins
    return found


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
    for node in ast.walk(tree):
        names.defined.update(_bound(node))
        if isinstance(node, ast.ClassDef):
            members = {name for inner in ast.walk(node) for name in _bound(inner)}
            names.members.setdefault(node.name, set()).update(members - {node.name})
            names.bases.setdefault(node.name, []).extend(
                base.id for base in node.bases if isinstance(base, ast.Name) and base.id != node.name
            )


def _bound(node: ast.AST) -> Iterator[str]:
    """The names that a node defines."""
    if isinstance(node, ast.ClassDef | ast.FunctionDef):
        yield node.name
    elif isinstance(node, ast.arg):
        yield node.arg
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id
    elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
        yield node.attr
    elif (
        isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("TINY_LLM_")
    ):
        yield node.value  # a variable of the environment


def _is_file(word: str) -> bool:
    return _FILE.fullmatch(word) is not None and (word.endswith(_SUFFIXES) or "/" in word)


def _existing(word: str, folders: list[Path]) -> list[Path]:
    return sorted({path for folder in folders for path in folder.glob(word.rstrip("/"))})


def _is_in(name: str, file: Path) -> bool:
    text = file.read_text(encoding="utf-8")
    return all(re.search(rf"\b{part}\b", text) for part in name.split("."))
