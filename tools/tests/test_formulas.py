"""Formulas of the pages: what is one, how it is shown, and which are refused."""

import os
import subprocess
from pathlib import Path

import pytest

from tiny_llm_lab.course.manifest import load_course
from tools.book import preprocessor
from tools.book.checks import formula_problems
from tools.book.command import mdbook
from tools.book.figures import figure_problems, image_problems, is_same_drawing
from tools.book.formulas import FormulaError, formulas, mathml, with_mathml
from tools.book.page import Page
from tools.book.results import measured_problems


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("with $n$ tokens", ["n"]),
        ("$a$ and $b_i$,", ["a", "b_i"]),
        ("$$\no = \\sum_s w_s\n$$", ["\no = \\sum_s w_s\n"]),
        ("wrapped $a +\nb$ here", ["a +\nb"]),
        ("| $|x|$ | cell |", ["|x|"]),
        ("it costs $5 or $6", []),
        ("it costs US$5 or US$6", []),
        ("it costs 5$ or 6$ a month", []),
        ("a lone $ here", []),
        (r"\$5 and 6\$", []),
        ("`$x$` and ``a ` $x$``", []),
        ("```text\n$x$\n```\n", []),
        ("  ~~~\n$x$\n  ~~~\n$y$", ["y"]),
        ("<!-- $x$ --><a title='$x$'>", []),
        ("one $x\n\nother$ paragraph", []),
    ],
)
def test_a_formula_stands_between_dollars_outside_of_code(text, found):
    assert [formula.latex for formula in formulas(text)] == found
    assert bool(found) or with_mathml(text) == text


def test_formulas_side_by_side_may_go_below_one_another():
    assert with_mathml(r"$$a = b, \qquad c = d$$").count("</math><math ") == 1
    for together in (r"a = {b \qquad c}", r"\begin{aligned} a &= b \qquad c \\ d &= e \end{aligned}"):
        assert with_mathml(f"$${together}$$").count("<math ") == 1


@pytest.mark.parametrize("mark", ["*", "[", "|", "\\_", "\\text{a_b}"])
def test_markdown_finds_nothing_of_its_own_in_a_formula(mark):
    text = mathml(f"a {mark} b")
    assert not {"*", "[", "|", "_", "\\"} & set(text)


def test_upright_letters_are_one_word_and_a_limit_stands_below():
    assert "<mi>softmax</mi>" in mathml(r"\mathrm{softmax}(x)")
    assert "<munder>" in mathml(r"\max_i x_i", is_display=True)
    assert '<mo lspace="0" rspace="0.17em">max</mo>' in mathml(r"\max(a, b)")
    assert "<mtable" in mathml(r"\begin{aligned} a &= b \\ c &= d \end{aligned}")


@pytest.mark.parametrize(
    ("latex", "complaint"),
    [
        (r"\cdoot x", r"unknown: \\cdoot"),
        (r"\frac{a", "braces do not match"),
        ("a}", "braces do not match"),
        (r"\frac{a}", r"an argument is missing .mfrac"),
        ("a_", "missing super script or subscript"),
        (r"\left( a", "extra left or missing right"),
        (r"a \\ b", r"needs an environment"),
        ("a & b", "unknown: &"),
        (r"\text{a<b}", "a character of HTML"),
        (" ", "no available tokens"),
    ],
)
def test_latex_that_would_be_shown_wrong_is_refused(latex, complaint):
    with pytest.raises(FormulaError, match=complaint):
        mathml(latex)


def test_a_formula_that_cannot_be_shown_is_found_with_its_line_and_kept():
    text = "one\n$a_i$ and\n$\\cdoot$\n\n$$\n\\frac{a\n$$\n"
    assert formula_problems(Page(Path("page.md"), text)) == [
        r"page.md:3: cannot show $\cdoot$: unknown: \cdoot",
        r"page.md:5: cannot show $\frac{a$: braces do not match",
    ]
    assert r"$\cdoot$" in with_mathml(text)


def test_mdbook_builds_a_page_with_mathml(tmp_path):
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "SUMMARY.md").write_text("[One](one.md)\n")
    (tmp_path / "src" / "one.md").write_text("# One\n\nWith $2 * n * 3$.\n\n$$\n\\frac{q}{k}\n$$\n")
    (tmp_path / "book.toml").write_text('[preprocessor.formulas]\ncommand = "false"\n')
    subprocess.run(
        [mdbook(), "build", str(tmp_path)], check=True, env=os.environ | preprocessor.environment()
    )
    for name in ("one.html", "print.html"):
        page = (tmp_path / "book" / name).read_text("utf-8")
        assert page.count("<math") == 2
        assert "<mfrac>" in page
        assert "<em>" not in page


@pytest.mark.parametrize(
    ("latex", "name"),
    [
        (r"a \cos p", '<mo lspace="0.17em" rspace="0.17em">cos</mo>'),
        (r"= \exp(y)", '<mo lspace="0" rspace="0">exp</mo>'),
        (r"2 \log z", '<mo lspace="0.17em" rspace="0.17em">log</mo>'),
    ],
)
def test_the_name_of_a_function_stands_by_itself(latex, name):
    assert name in mathml(latex)


# Figures, tables of measured numbers and counts of the book: what is stale, unused or untold is found


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
