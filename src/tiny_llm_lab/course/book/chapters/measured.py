"""Measured numbers of the pages: a table of them is generated from results/, or says why it is not."""

import re
from collections.abc import Iterator
from typing import Final

from tiny_llm_lab.course.book.page import Page

_GENERATED: Final = re.compile(
    r"<!-- (results: [^>]+|tasks: [^>]+|days) -->\n.*?<!-- end of \w+ -->", re.DOTALL
)
_HEADER: Final = re.compile(r"^(?P<cells>\|.*\|)[ \t]*\n\|[ :|-]+\|[ \t]*$", re.MULTILINE)
_BY_HAND: Final = re.compile(r"<!-- by hand: \S.* -->\n\n?\Z")
# A time or a rate in a header's cell: "gap p95 ms", "TTFT, s", "output tok/s", "times faster".
_UNIT: Final = re.compile(
    r"(?:^|[ ,(/])(?:ms|µs|tok/s|tokens/s|req/s|GB/s|GFLOP/s|times (?!the\b)(?=\w))|^×(?: |$)|[ ,(]s\)?$"
)


def measured_problems(page: Page) -> Iterator[str]:
    """Tables with a time or a rate in their header that stand outside of every mark."""
    text = _GENERATED.sub(lambda match: "\n" * match[0].count("\n"), page.text)
    for match in _HEADER.finditer(text):
        cells = [cell.strip() for cell in match["cells"].strip("|").split("|")]
        found = next((cell for cell in cells if _UNIT.search(cell)), None)
        if found is not None and not _BY_HAND.search(text, 0, match.start()):
            line = text.count("\n", 0, match.start()) + 1
            yield (
                f"{page.name}:{line}: a table of measured numbers ({found}): move them to results/NAME.json "
                "and write <!-- results: NAME -->, or write <!-- by hand: REASON --> above it"
            )
