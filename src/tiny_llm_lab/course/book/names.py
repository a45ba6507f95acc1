"""Files and names that docs/structure.md mentions: each has to exist in the sources."""

import re
from collections.abc import Iterator
from pathlib import Path

from tiny_llm_lab.course.book.page import Page

_CODE = re.compile(r"`([^`]+)`")
_NAME = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*")
_WORD = re.compile(r"[A-Za-z_]\w*")
_FILE = re.compile(r"[\w*.\-]+(?:/[\w*.\-]*)*")
_SUFFIXES = (".py", ".h", ".cpp", ".metal", ".toml", ".md", ".svg", ".js", ".json", ".yml", ".cfg", "/")
# A path may be short: below the package that the table is about.
_ROOMS = ("types", "runtime", "serving", "measure", "course", "cli")
_ROOTS = ("", "src", "src/tiny_llm_ref", "src/tiny_llm_lab", *(f"src/tiny_llm_lab/{room}" for room in _ROOMS))
_SOURCES = {".py", ".h", ".cpp", ".metal"}
_PACKAGES = ("src/tiny_llm_ref", "src/tiny_llm_lab")


def name_problems(page: Page, root: Path) -> list[str]:
    """Files of a page that do not exist, names behind a file that it lacks, and names that no source has."""
    paths = [path for package in _PACKAGES for path in (root / package).rglob("*") if path.suffix in _SOURCES]
    names = {path.stem for path in paths} | {path.parent.name for path in paths}
    names.update(word for path in paths for word in _WORD.findall(path.read_text(encoding="utf-8")))
    return [
        f"{page.name}:{number}: there is no {missing}"
        for number, line in enumerate(page.text.splitlines(), 1)
        for missing in _missing(line, names, root)
    ]


def _missing(line: str, names: set[str], root: Path) -> Iterator[str]:
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
        elif _NAME.fullmatch(word) and not (
            names.issuperset(word.split(".")) and (file is None or _is_in(word, file))
        ):
            yield f"{word} in {file.relative_to(root)}" if file else word
        if line[match.end() :].startswith((";", ".", ":")):
            file = None  # another thought begins


def _is_file(word: str) -> bool:
    return _FILE.fullmatch(word) is not None and (word.endswith(_SUFFIXES) or "/" in word)


def _existing(word: str, folders: list[Path]) -> list[Path]:
    return sorted({path for folder in folders for path in folder.glob(word.rstrip("/"))})


def _is_in(name: str, file: Path) -> bool:
    text = file.read_text(encoding="utf-8")
    return all(re.search(rf"\b{part}\b", text) for part in name.split("."))
