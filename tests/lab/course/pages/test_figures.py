"""Figures of the book: stale, unused and untold ones are found."""

from pathlib import Path

import pytest

from tiny_llm_lab.course.book.chapters.figures import figure_problems, image_problems, is_same_drawing
from tiny_llm_lab.course.book.page import Page

SVG = '<svg width="480"><title>Bars</title><rect x="10.5" fill-opacity="0.31"/><text>7 tokens</text></svg>'
SHOWN = Page(Path("one.md"), "![Bars that grow from left to right](figures/bars.svg)")


@pytest.fixture
def root(tmp_path: Path) -> Path:
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
def test_a_drawing_may_differ_by_rounding_alone(old: str, new: str, is_same: bool) -> None:
    assert is_same_drawing(SVG, SVG.replace(old, new)) is is_same


def test_a_stale_figure_is_found(root: Path) -> None:
    (root / "book/figures/bars.py").write_text("def draw():\n    return '<svg/>'\n")
    assert figure_problems(root, [SHOWN]) == [
        "book/src/figures/bars.svg: the figure is stale: `./pdmw run book` draws it anew"
    ]


def test_a_figure_without_a_script_a_page_or_a_title_is_found(root: Path) -> None:
    (root / "book/src/figures/old.svg").write_text("<svg/>")
    pages = [SHOWN, Page(Path("two.md"), "![](figures/old.svg)")]
    assert figure_problems(root, pages) == [
        "book/src/figures/old.svg: no script of book/figures draws it",
        "book/src/figures/old.svg: it has no <title>, which is read to those who do not see it",
    ]
    assert "book/src/figures/old.svg: no page shows it" in figure_problems(root, [SHOWN])


def test_an_image_needs_words() -> None:
    assert image_problems(SHOWN) == []
    (found,) = image_problems(Page(Path("one.md"), "![bars](figures/bars.svg)"))
    assert found.startswith("one.md: figures/bars.svg has no alternative text")
