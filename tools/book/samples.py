"""Sample outputs of the pages: an HTML comment in front of each says where it comes from.

`<!-- output of: ./pdmw run … -->` before a text block: the command is run, and the block has to occur in what
it prints. Figures may differ, and `[…]` stands for anything. `<!-- output of: the program above -->` runs the
Python block before it.
`<!-- recorded: NAME -->`, for what takes minutes: results/NAME.json says when and where.
"""

import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tools.book.page import Page
from tools.commands import EVERY

_MARK = re.compile(
    r"^<!-- (?P<kind>output of|recorded): (?P<source>.+?) -->\n*(?:```text\n(?P<text>.*?)```)?",
    re.DOTALL | re.MULTILINE,
)
_ABOVE = "the program above"
# Pages for contributors quote other programs; in the book and in the README a text block is an output.
_UNMARKED = {"CONTRIBUTING.md", "docs"}
_NUMBER = r"\d(?:[\d.,]*\d)?"
_RUN_S = 300

Run = Callable[[Sequence[str]], str]


@dataclass(frozen=True)
class Sample:
    """A marked output: the kind and source of the mark, and the text that follows."""

    kind: str
    source: str
    text: str
    program: str  # the Python block before it, or ""


def samples(page: Page) -> Iterator[Sample]:
    """Every marked sample of a page."""
    programs = [block for block in page.blocks() if block.language == "python"]
    for match in _MARK.finditer(page.text):
        above = [block.code for block in programs if block.start < match.start()]
        yield Sample(match["kind"], match["source"], match["text"] or "", above[-1] if above else "")


def mark_problems(page: Page, results: Collection[str]) -> Iterator[str]:
    """Text blocks without a mark where one is needed, and recorded samples without their results."""
    marked = list(samples(page))
    missing = page.text.count("```text\n") - sum(bool(sample.text) for sample in marked)
    if missing and not {page.name, page.path.parent.name} & _UNMARKED:
        yield (
            f"{page.name}: {missing} sample output(s) without a line <!-- output of: COMMAND -->: "
            "write it above, or begin a block that is not output with ```plain"
        )
    for sample in marked:
        if sample.kind == "recorded":
            if sample.source not in results:
                yield f"{page.name}: a recorded sample needs results/{sample.source}.json, which is missing"
        elif not sample.source.startswith(("./pdmw run ", _ABOVE)):
            yield (
                f"{page.name}: a sample comes from `{sample.source}`: "
                f"name a command as ./pdmw run …, or {_ABOVE}"
            )


def sample_problems(page: Page, root: Path, run: Run | None = None) -> Iterator[str]:
    """Samples that differ from their command's output; runs the commands in `root`."""
    run = run or partial(_run, root)
    for sample in samples(page):
        if sample.kind == "output of" and not occurs(sample.text, run(_command(sample))):
            yield f"{page.name}: `{sample.source}` prints something else: run it and copy its output"


def occurs(sample: str, output: str) -> bool:
    """Whether `output` has the sample in it, whatever the figures, rules (===) and width of blanks."""
    pattern = re.escape(sample.strip()).replace(re.escape("[…]"), ".*?")
    pattern = re.sub(r"(?:\\?\s)+", r"\\s+", pattern)
    pattern = re.sub(r"(?<=\w)(?:\d|\\\.)*\d|\d(?:(?:\d|,|\\\.)*\d)?", lambda _: _NUMBER, pattern)
    pattern = re.sub(r"=+", "=+", pattern)
    return re.search(pattern, output, re.DOTALL) is not None


def _command(sample: Sample) -> list[str]:
    if sample.source == _ABOVE:
        return [sys.executable, "-c", sample.program]
    name, *arguments = shlex.split(sample.source)[2:]
    return [sys.executable, "-m", EVERY.modules[name].partition(".")[0], name, *arguments]


def _run(root: Path, command: Sequence[str]) -> str:
    done = subprocess.run(
        command, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=_RUN_S, check=False
    )
    return done.stdout.decode(errors="replace")
