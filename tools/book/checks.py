"""Finds mistakes in a page: dead links, command lines that the parser rejects, broken formulas."""

import re
import shlex
from argparse import Namespace
from collections.abc import Iterator
from contextlib import redirect_stdout
from html.parser import HTMLParser
from io import StringIO
from pathlib import Path
from posixpath import dirname, join, normpath
from urllib.parse import unquote, urlsplit

from tiny_llm_lab.types import UserError
from tools.book.formulas import Formula, FormulaError, formulas, mathml
from tools.book.page import Page
from tools.commands import EVERY

_LATEX = re.compile(r"\\{1,2}[\[(]|\\[a-zA-Z]{2,}|\$\$")
_SHELLS = {"bash", "console", "sh", "shell"}
_RUNNERS = (["pdm", "run"], ["./pdmw", "run"])
# What ends one command of a shell line.
_ENDS = {"|", "||", "&&", ";", "&", ">", ">>", "<", "2>", "2>&1"}
# Pages that mdBook makes from others, with links of their own kind.
_DERIVED = {"print.html", "toc.html", "404.html"}


def command_problems(page: Page) -> list[str]:
    """Command lines in a page's shell blocks with an unknown command, or that the parser rejects."""
    return [
        f"{page.name}:{number}: `{shlex.join(words)}`: {complaint}"
        for block in page.blocks()
        if block.language in _SHELLS
        for number, words in _command_lines(block.code, block.line)
        if (complaint := _complaint(words))
    ]


def formula_problems(page: Page) -> list[str]:
    """Formulas that cannot be shown, and LaTeX outside of dollars, which the book would show as it is."""
    found = [
        f"{page.name}:{formula.line}: cannot show ${formula.latex.strip()}$: {complaint}"
        for formula in formulas(page.text)
        if (complaint := _formula_complaint(formula))
    ]
    return found + [
        f"{page.name}:{number}: raw LaTeX {raw[0]}: put the formula between dollars, $…$"
        for number, line in enumerate(page.prose().splitlines(), 1)
        if (raw := _LATEX.search(line))
    ]


def link_problems(built: Path) -> list[str]:
    """Dead links, anchors and images in the built book; we don't check other sites."""
    pages: dict[str, _Targets] = {}
    for path in sorted(built.rglob("*.html")):
        if path.name not in _DERIVED:
            targets = pages[path.relative_to(built).as_posix()] = _Targets()
            targets.feed(path.read_text(encoding="utf-8"))
    found = []
    for name, page in pages.items():
        for link in dict.fromkeys(page.links):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            path_to = unquote(parts.path)
            target = normpath(join(dirname(name), path_to)) if path_to else name
            if (built / target).is_dir():
                target = join(target, "index.html")
            anchor, source = unquote(parts.fragment), f"{name.removesuffix('.html')}.md"
            if not (built / target).is_file():
                found.append(f"{source}: dead link: {link}")
            elif anchor and target in pages and anchor not in pages[target].ids:
                found.append(f"{source}: dead anchor: {link}")
    return found


def _formula_complaint(formula: Formula) -> str | None:
    try:
        mathml(formula.latex, is_display=formula.is_display)
    except FormulaError as error:
        return str(error)
    return None


def _complaint(words: list[str]) -> str | None:
    """What is wrong with a `pdm run` or `./pdmw run` line, or None."""
    if words[2:3] == ["python"]:
        return None  # PDM runs any program
    if len(words) < 3 or words[2] not in EVERY.modules:
        return f"this command does not exist: choose one of {', '.join(EVERY)}"
    parser = EVERY.parser(words[2])
    # Arguments after `--` are pytest's; the book writes the dashes, so that we find its typos.
    hands_on = parser.get_default("handed_on") is not None
    own = words[3 : words.index("--")] if hands_on and "--" in words else words[3:]
    own = own[1:] if hands_on and own and own[0][0].isdigit() else own  # a day or a task
    try:
        with redirect_stdout(StringIO()):
            parser.parse_args(own, Namespace(command=words[2]))
    except UserError as error:
        return str(error)
    except SystemExit:
        pass  # so --help ends
    return None


def _command_lines(code: str, first: int) -> Iterator[tuple[int, list[str]]]:
    """Every `pdm run` or `./pdmw run` line of a shell block whose code begins in line `first`."""
    continued = ""
    for number, raw in enumerate(code.splitlines(), first):
        line = continued + raw.strip().removeprefix("$ ")
        continued = line[:-1] if line.endswith("\\") else ""
        words = [] if continued else _words(line)
        if words[:2] in _RUNNERS:
            yield number, words


def _words(line: str) -> list[str]:
    try:
        words = shlex.split(line, comments=True)
    except ValueError:
        # Output with a lone quote, not a command.
        return []
    end = next((i for i, word in enumerate(words) if word in _ENDS), len(words))
    return words[:end]


class _Targets(HTMLParser):
    """The anchors and the links of a built page."""

    def __init__(self) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        if anchor := named.get("id") or (named.get("name") if tag == "a" else None):
            self.ids.add(anchor)
        if link := named.get({"a": "href", "img": "src", "source": "src"}.get(tag, "")):
            self.links.append(link)


_CODE = re.compile(r"`([^`]+)`")
_NAME = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*")
_WORD = re.compile(r"[A-Za-z_]\w*")
_FILE = re.compile(r"[\w*.\-]+(?:/[\w*.\-]*)*")
_SUFFIXES = (".py", ".h", ".cpp", ".metal", ".toml", ".md", ".svg", ".js", ".json", ".yml", ".cfg", "/")
# A path may be short: below the package that the table is about.
_PACKAGES = ("src/tiny_llm_ref", "src/tiny_llm_lab", "tools", "benchmarks")
_ROOMS = ("types", "runtime", "serving", "measure", "course", "cli")
_ROOTS = ("", "src", *_PACKAGES, *(f"src/tiny_llm_lab/{room}" for room in _ROOMS))
_SOURCES = {".py", ".h", ".cpp", ".metal"}


def name_problems(page: Page, root: Path) -> list[str]:
    """Files of a page that do not exist, names behind a file that it lacks, and names that no source has."""
    paths = [
        path
        for package in _PACKAGES
        for path in (root / package).rglob("*")
        if path.suffix in _SOURCES and "tests" not in path.relative_to(root).parts
    ]
    names = {path.stem for path in paths} | {path.parent.name for path in paths}
    names.update(word for path in paths for word in _WORD.findall(path.read_text(encoding="utf-8")))
    return [
        f"{page.name}:{number}: there is no {missing}"
        for number, line in enumerate(page.text.splitlines(), 1)
        for missing in _missing(line, names, root)
    ]


def _missing(line: str, names: set[str], root: Path) -> Iterator[str]:
    file: Path | None = None
    folders: list[Path] = []  # a file's name may follow its folder's
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
