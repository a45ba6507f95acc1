"""A page: its code blocks, its prose, and the pages that have generated or checked parts."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tiny_llm_lab.course.manifest import Course
from tools.book.formulas import without_formulas

_BLOCK = re.compile(r"^[ \t]*```([\w-]*)[^\n]*\n(.*?)^[ \t]*```[^\n]*$", re.DOTALL | re.MULTILINE)
_CODE = re.compile(r"^```.*?^```|`[^`\n]+`", re.DOTALL | re.MULTILINE)

_KINDS = "tasks|days|signatures|commands|results|fields|hours|paths|macs"
_GENERATED = re.compile(
    rf"(?P<begin><!-- (?P<kind>{_KINDS})(?:: (?P<about>[^>\n]+?))? -->\n)"
    r".*?(?P<end><!-- end of (?P=kind) -->)",
    re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    """A fenced block of a page; `start` is where it begins in the text, `line` is its first line of code."""

    language: str
    code: str
    start: int
    line: int


@dataclass(frozen=True)
class Page:
    """A Markdown file."""

    path: Path
    text: str

    @property
    def name(self) -> str:
        return self.path.name

    def blocks(self) -> Iterator[Block]:
        """The fenced blocks, in order."""
        for match in _BLOCK.finditer(self.text):
            first_line = self.text.count("\n", 0, match.start(2)) + 1
            yield Block(match[1], match[2], match.start(), first_line)

    def prose(self) -> str:
        """The text without its code and its formulas, on the same lines."""
        return _CODE.sub(lambda code: "\n" * code[0].count("\n"), without_formulas(self.text))


def with_generated(text: str, parts: Mapping[str, Callable[[str], str]]) -> str:
    """A page with the right text between `<!-- KIND: ABOUT -->` and `<!-- end of KIND -->`.

    `parts` makes it of ABOUT, "" where there is none; other kinds stay as they are.
    """

    def right(match: re.Match[str]) -> str:
        make = parts.get(match["kind"])
        return match[0] if make is None else f"{match['begin']}\n{make(match['about'] or '')}\n{match['end']}"

    return _GENERATED.sub(right, text)


def without_generated(text: str) -> str:
    """A page's text on the same lines, without its generated parts."""
    return _GENERATED.sub(lambda match: "\n" * match[0].count("\n"), text)


def read_pages(course: Course) -> list[Page]:
    """README, CONTRIBUTING, the READMEs of tools and benchmarks, and the pages of docs and the book."""
    paths = [
        course.root / "README.md",
        course.root / "CONTRIBUTING.md",
        course.root / "tools" / "README.md",
        course.root / "benchmarks" / "README.md",
        *sorted((course.root / "docs").glob("*.md")),
        *sorted((course.root / "book" / "src").rglob("*.md")),
    ]
    return [Page(path, path.read_text(encoding="utf-8")) for path in paths if path.exists()]


def markdown_table(titles: Sequence[str], rules: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; each of `rules` is "---", or "--:" for a column of numbers."""
    return "".join(f"| {' | '.join(row)} |\n" for row in (titles, rules, *rows))
