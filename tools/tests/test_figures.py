"""Figures, tables of measured numbers and counts of the book: what is stale, unused or untold is found."""

from pathlib import Path

import pytest

from tiny_llm_lab.course.manifest import load_course
from tools.book.figures import figure_problems, image_problems, is_same_drawing
from tools.book.page import Page
from tools.book.results import measured_problems

SVG = '<svg width="480"><title>Bars</title><rect x="10.5" fill-opacity="0.31"/><text>7 tokens</text></svg>'
SHOWN = Page(Path("one.md"), "![Bars that grow from left to right](figures/bars.svg)")


@pytest.fixture
def root(tmp_path):
    """A repository with one figure, as its script draws it."""
    scripts, kept = tmp_path / "book/figures", tmp_path / "book/src/figures"
    scripts.mkdir(parents=True)
    kept.mkdir(parents=True)
    (scripts / "__main__.py").write_text(
        "import sys, pathlib\nfrom book.figures.bars import draw\n"
        "pathlib.Path(sys.argv[2], 'bars.svg').write_text(draw())\n"
    )
    (scripts / "bars.py").write_text(f"def draw():\n    return {SVG!r}\n")
    (kept / "bars.svg").write_text(SVG)
    return tmp_path


@pytest.mark.parametrize(
    ("old", "new", "is_same"),
    [
        ("10.5", "10.51", True),
        ("0.31", "0.33", True),
        ("10.5", "12.5", False),
        ("7 tokens", "8 tokens", False),
        ("tokens", "rows", False),
    ],
)
def test_a_drawing_may_differ_by_rounding_alone(old, new, is_same):
    assert is_same_drawing(SVG, SVG.replace(old, new)) is is_same


def test_a_stale_figure_is_found(root):
    (root / "book/figures/bars.py").write_text("def draw():\n    return '<svg/>'\n")
    assert figure_problems(root, [SHOWN]) == [
        "book/src/figures/bars.svg: the figure is stale: run ./pdmw run book"
    ]


def test_a_figure_without_a_script_a_page_or_a_title_is_found(root):
    (root / "book/src/figures/old.svg").write_text("<svg/>")
    pages = [SHOWN, Page(Path("two.md"), "![](figures/old.svg)")]
    assert figure_problems(root, pages) == [
        "book/src/figures/old.svg: no script in book/figures draws it: delete it",
        "book/src/figures/old.svg: add a <title>, which screen readers read out",
    ]
    assert "book/src/figures/old.svg: no page shows it: use it or delete it" in figure_problems(root, [SHOWN])


def test_an_image_needs_words():
    assert image_problems(SHOWN) == []
    (found,) = image_problems(Page(Path("one.md"), "![bars](figures/bars.svg)"))
    assert found.startswith("one.md: figures/bars.svg needs alternative text")


TABLE = "| rows | {} |\n| --- | --: |\n| 1 | 3.2 |\n"


@pytest.mark.parametrize(
    "unit", ["ms", "gap p95 ms", "TTFT, s", "out tok/s", "rate (GB/s)", "times faster", "×"]
)
def test_a_time_or_a_rate_in_a_header_needs_its_results(unit):
    (found,) = measured_problems(Page(Path("one.md"), f"text\n\n{TABLE.format(unit)}"))
    assert found.startswith(f"one.md:3: a table of measured numbers ({unit})")


@pytest.mark.parametrize("header", ["tokens", "forms", "stops", "x times the weight", "`ms`", "B × L"])
def test_a_header_without_a_unit_is_a_table_like_others(header):
    assert list(measured_problems(Page(Path("one.md"), TABLE.format(header)))) == []


@pytest.mark.parametrize(
    "text",
    [
        f"<!-- results: ladder -->\n\n{TABLE.format('ms')}\n<!-- end of results -->\n",
        f"<!-- by hand: from a paper -->\n{TABLE.format('ms')}",
        f"<!-- by hand: from a paper -->\n\n{TABLE.format('ms')}",
    ],
)
def test_a_generated_table_and_one_with_a_reason_pass(text):
    assert list(measured_problems(Page(Path("one.md"), text))) == []


@pytest.mark.parametrize("text", ["<!-- by hand: -->", "<!-- by hand: x -->\n\ntext"])
def test_a_reason_stands_right_above_and_is_not_empty(text):
    assert len(list(measured_problems(Page(Path("one.md"), f"{text}\n\n{TABLE.format('ms')}")))) == 1


PREFACE = Path(__file__).resolve().parents[2] / "book" / "src" / "preface.md"


def test_the_preface_counts_the_tasks_in_each_language():
    tasks = [task for day in load_course().days for task in day.tasks]
    kernels = [task.kernel for task in tasks if task.kernel]
    metal = sum(kernel.endswith(".metal") for kernel in kernels)
    text = PREFACE.read_text("utf-8")
    assert f"the {len(kernels) - metal} tasks in C++, the tests of the {metal} tasks in Metal" in text
    assert f"{len(kernels)} of the {len(tasks)} tasks are in C++ or Metal" in text
