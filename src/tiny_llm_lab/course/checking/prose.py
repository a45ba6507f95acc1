"""Turns of phrase that a native writer would not use, counted on each page against `prose.toml`."""

import re
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

_BUDGET = "prose.toml"
_NO_PROSE = re.compile(
    r"^(?P<fence>`{3,})[\s\S]*?^(?P=fence)$|<!--[\s\S]*?-->|`[^`\n]*`|\]\([^)]*\)|<[^>\n]*>", re.MULTILINE
)


def complaints(root: Path) -> Iterator[str]:
    """Pages below `root` with more turns than prose.toml allows them, or with fewer: a budget only falls.

    `pages` of prose.toml lists globs, `turns` a pattern by name, and `budget` the turns that a page may have.
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


def turns(text: str, patterns: dict[str, str]) -> Counter[str]:
    """How often each pattern is in the prose of a page; code, links and generated marks left out."""
    prose = _NO_PROSE.sub(" ", text)
    found = {name: len(re.findall(each, prose, re.IGNORECASE)) for name, each in patterns.items()}
    return +Counter(found)  # without those that do not occur
