"""What `prose.toml` allows a page: turns of phrase that a native writer would not use, and words."""

import re
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tools.book.page import without_generated

_BUDGET = "prose.toml"
_NO_PROSE = re.compile(
    r"^(?P<fence>`{3,})[\s\S]*?^(?P=fence)$|<!--[\s\S]*?-->|`[^`\n]*`|\]\([^)]*\)|<[^>\n]*>", re.MULTILINE
)
# Tables, formulas and all that is in no sentence; a name in code is a word of its sentence.
_NO_WORDS = re.compile(
    r"^(?P<fence>`{3,})[\s\S]*?^(?P=fence)$|<!--[\s\S]*?-->|^\|.*$|\$\$[\s\S]*?\$\$|\]\([^)]*\)|<[^>\n]*>",
    re.MULTILINE,
)


def complaints(root: Path) -> Iterator[str]:
    """Pages below `root` with more turns than prose.toml allows them, or with fewer: a budget only falls.
    Then pages with too many words.

    `pages` of prose.toml lists globs, `turns` a pattern by name, `budget` the turns that a page may have, and
    `words` the words that each page of a glob may have.
    """
    said = tomllib.loads((root / _BUDGET).read_text(encoding="utf-8"))
    budget: dict[str, int] = said["budget"]
    pages = {path.relative_to(root).as_posix(): path for glob in said["pages"] for path in root.glob(glob)}
    for name, path in sorted(pages.items()):
        found = turns(path.read_text(encoding="utf-8"), said["turns"])
        allowed = budget.pop(name, 0)
        if found.total() > allowed:
            listed = ", ".join(f"{turn} {count}" for turn, count in found.most_common())
            yield f"{name}: {found.total()} turns that docs/style.md rewrites, budget {allowed}: {listed}"
        if found.total() < allowed:
            yield f"{name}: {found.total()} turns, budget {allowed}: lower it in {_BUDGET}"
    yield from (f"{name} does not exist: remove it from {_BUDGET}" for name in budget)
    for glob, most in said["words"].items():
        for path in sorted(root.glob(glob)):
            if (count := num_words(path.read_text(encoding="utf-8"))) > most:
                name = path.relative_to(root).as_posix()
                yield f"{name}: {count:,} words, at most {most:,}: shorten it, or give a part its own page"


def turns(text: str, patterns: dict[str, str]) -> Counter[str]:
    """How often each pattern is in the prose of a page; code, links and generated marks left out."""
    prose = _NO_PROSE.sub(" ", text)
    found = {name: len(re.findall(each, prose, re.IGNORECASE)) for name, each in patterns.items()}
    return +Counter(found)  # without those that do not occur


def num_words(text: str) -> int:
    """The words and numbers that a reader of a page reads: folded answers too, without code and tables."""
    prose = _NO_WORDS.sub(" ", without_generated(text))
    return len(re.findall(r"[A-Za-z][\w'’-]*|\d[\d.,]*", prose))
