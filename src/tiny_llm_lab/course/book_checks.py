"""What can be wrong in a page: a dead link, a command line that its parser rejects, or a raw formula."""

import importlib
import re
import shlex
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from html.parser import HTMLParser
from io import StringIO
from pathlib import Path
from urllib.parse import unquote, urlsplit

from tiny_llm_lab.cli import COMMANDS

_FENCE = re.compile(r"^\s*```(?P<language>[\w-]*)")
_CODE = re.compile(r"^```.*?^```|`[^`\n]+`", re.DOTALL | re.MULTILINE)
_LATEX = re.compile(r"\\{1,2}[\[(]|\\[a-zA-Z]{2,}|\$\$")
_SHELLS = {"bash", "console", "sh", "shell"}
_RUNNERS = (["pdm", "run"], ["./pdmw", "run"])
# What ends one command of a shell line.
_ENDS = {"|", "||", "&&", ";", "&", ">", ">>", "<", "2>", "2>&1"}
# Pages that mdBook makes from others, with links of their own kind.
_DERIVED = {"print.html", "toc.html", "404.html"}


@dataclass(frozen=True)
class CommandLine:
    """A `pdm run` line of a fenced block and where it stands."""

    place: str
    words: tuple[str, ...]


@dataclass
class Page:
    """The targets and the links of a built page."""

    ids: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)


def command_problems(name: str, text: str) -> list[str]:
    """Command lines of a page that name no command, or that its parser rejects."""
    found = []
    for line in command_lines(name, text):
        complaint = _complaint(line.words)
        if complaint:
            found.append(f"{line.place}: `{shlex.join(line.words)}`: {complaint}")
    return found


def formula_problems(pages: dict[Path, str]) -> list[str]:
    """LaTeX in the pages, which the book would show as it is."""
    found = []
    for path, text in pages.items():
        prose = _CODE.sub(lambda code: "\n" * code[0].count("\n"), text)
        for number, line in enumerate(prose.splitlines(), 1):
            if formula := _LATEX.search(line):
                found.append(f"{path.name}:{number}: raw LaTeX {formula[0]}: write the formula as plain text")
    return found


def command_lines(name: str, text: str) -> Iterator[CommandLine]:
    """Every `pdm run` or `./pdmw run` line in the shell blocks of a page."""
    language: str | None = None
    continued = ""
    for number, raw in enumerate(text.splitlines(), 1):
        fence = _FENCE.match(raw)
        if fence:
            language = fence["language"] if language is None else None
            continue
        if language not in _SHELLS:
            continue
        line = continued + raw.strip().removeprefix("$ ")
        continued = line[:-1] if line.endswith("\\") else ""
        words = [] if continued else _words(line)
        if words[:2] in _RUNNERS:
            yield CommandLine(f"{name}:{number}", tuple(words))


def link_problems(built: Path) -> list[str]:
    """Links, anchors and images of the built book that lead nowhere; other sites are not asked."""
    pages = {
        path.relative_to(built).as_posix(): _read_page(path)
        for path in sorted(built.rglob("*.html"))
        if path.name not in _DERIVED
    }
    found = []
    for name, page in pages.items():
        for link in dict.fromkeys(page.links):
            target, anchor = _target(name, link)
            if target is None:
                continue
            if not (built / target).is_file():
                found.append(f"{_source(name)}: dead link: {link}")
            elif anchor and target in pages and anchor not in pages[target].ids:
                found.append(f"{_source(name)}: dead anchor: {link}")
    return found


def _complaint(words: tuple[str, ...]) -> str | None:
    """What is wrong with a command line, or None."""
    if words[2:3] == ("python",):
        return None  # PDM runs any program
    if len(words) < 3 or words[2] not in COMMANDS:
        return f"no such command: choose one of {', '.join(COMMANDS)}"
    name = words[2]
    try:
        module = importlib.import_module(COMMANDS[name])
    except ModuleNotFoundError as error:
        return f"the command cannot be loaded: {error}"
    parser = ArgumentParser(prog=name)
    module.add_arguments(parser)
    complaint = StringIO()
    try:
        with redirect_stderr(complaint), redirect_stdout(StringIO()):
            # What stands behind `--` is pytest's; a book writes the dashes, so that its typos are found.
            hands_on = parser.get_default("handed_on") is not None and "--" in words
            own = words[3 : words.index("--")] if hands_on else words[3:]
            parser.parse_args(own, Namespace(command=name))
    except SystemExit as end:
        # --help ends well.
        return complaint.getvalue().strip().rpartition("error: ")[2] if end.code else None
    return None


def _words(line: str) -> list[str]:
    try:
        words = shlex.split(line, comments=True)
    except ValueError:
        # Output with a lone quote, not a command.
        return []
    end = next((i for i, word in enumerate(words) if word in _ENDS), len(words))
    return words[:end]


def _target(page: str, link: str) -> tuple[str | None, str]:
    """The file, relative to the book, and the anchor that a link of `page` means; None = elsewhere."""
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return None, ""
    path = unquote(parts.path)
    target = page if not path else (Path(page).parent / path).as_posix()
    if path.endswith("/") or path == ".":
        target = f"{target}/index.html"
    return _normal(target), unquote(parts.fragment)


def _normal(path: str) -> str:
    parts: list[str] = []
    for part in path.split("/"):
        if part == ".." and parts and parts[-1] != "..":
            parts.pop()
        elif part not in ("", "."):
            parts.append(part)
    return "/".join(parts)


def _source(page: str) -> str:
    return page.removesuffix(".html") + ".md"


def _read_page(path: Path) -> Page:
    reader = _Reader()
    reader.feed(path.read_text(encoding="utf-8"))
    return reader.page


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.page = Page()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        if anchor := named.get("id") or (named.get("name") if tag == "a" else None):
            self.page.ids.add(anchor)
        link = named.get("href") if tag == "a" else named.get("src") if tag in ("img", "source") else None
        if link:
            self.page.links.append(link)
