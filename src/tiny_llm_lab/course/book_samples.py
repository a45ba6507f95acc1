"""Sample outputs and drawings of the pages: an HTML comment in front of each says where it comes from.

`<!-- output of: ./pdmw run … -->` before a text block: the command is run, and the block has to occur in what
it prints. Figures may differ, and `[…]` stands for anything. `<!-- output of: the program above -->` runs the
Python block before it. `<!-- drawn by: ./pdmw run … --svg FILE -->` before an image: the command has to draw
the same file.
`<!-- recorded: NAME -->`, for what takes minutes: results/NAME.json says when and where.
"""

import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

_MARK = re.compile(
    r"<!-- (?P<kind>output of|drawn by|recorded): (?P<source>.+?) -->\n*(?:```text\n(?P<text>.*?)```)?",
    re.DOTALL,
)
_PROGRAM = re.compile(r"```python\n(.*?)```", re.DOTALL)
_ABOVE = "the program above"
# Every text block of these pages shows what a command prints.
_ALL_MARKED = ("README.md", "setup.md")
_NUMBER = r"\d(?:[\d.,]*\d)?"
_RUN_S = 300

Run = Callable[[Sequence[str]], str]


@dataclass(frozen=True)
class Sample:
    """A marked output or drawing: its page, the kind and source of the mark, and the text that follows."""

    page: str
    kind: str
    source: str
    text: str
    program: str  # the Python block before it, or ""


def samples(page: str, text: str) -> Iterator[Sample]:
    """Every marked sample of a page."""
    for match in _MARK.finditer(text):
        programs = _PROGRAM.findall(text[: match.start()])
        yield Sample(
            page, match["kind"], match["source"], match["text"] or "", programs[-1] if programs else ""
        )


def mark_problems(pages: dict[Path, str], results: Sequence[str]) -> list[str]:
    """Text blocks without a mark where one is needed, and recorded samples without their results."""
    found = []
    for path, text in pages.items():
        marked = list(samples(path.name, text))
        missing = text.count("```text\n") - sum(bool(sample.text) for sample in marked)
        if path.name in _ALL_MARKED and missing:
            found.append(
                f"{path.name}: {missing} sample output(s) without a line <!-- output of: COMMAND -->"
            )
        found += [
            f"{path.name}: a recorded sample names results/{sample.source}.json, which does not exist"
            for sample in marked
            if sample.kind == "recorded" and sample.source not in results
        ]
    return found


def sample_problems(pages: dict[Path, str], root: Path, run: Run | None = None) -> list[str]:
    """Samples that are not what their command prints or draws; runs the commands in `root`."""
    run = run or _runner(root)
    found = []
    for path, text in pages.items():
        for sample in samples(path.name, text):
            if sample.kind == "output of" and not occurs(sample.text, run(_command(sample))):
                found.append(f"{path.name}: `{sample.source}` prints something else: show what it prints")
            elif sample.kind == "drawn by" and not _is_drawn(sample, root, run):
                found.append(f"{path.name}: the picture is stale: {sample.source}")
    return found


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
    words = shlex.split(sample.source)
    return [sys.executable, "-m", "tiny_llm_lab", *words[2:]] if words[:2] == ["./pdmw", "run"] else words


def _is_drawn(sample: Sample, root: Path, run: Run) -> bool:
    words = _command(sample)
    place = words.index("--svg") + 1
    with tempfile.TemporaryDirectory() as folder:
        drawn, kept = Path(folder) / "drawn.svg", root / words[place]
        run([*words[:place], str(drawn), *words[place + 1 :]])
        return drawn.exists() and kept.exists() and drawn.read_bytes() == kept.read_bytes()


def _runner(root: Path) -> Run:
    def run(command: Sequence[str]) -> str:
        done = subprocess.run(
            command, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=_RUN_S, check=False
        )
        return done.stdout.decode(errors="replace")

    return run
