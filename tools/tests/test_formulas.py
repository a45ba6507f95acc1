"""Formulas of the pages: what is one, how it is shown, and which are refused."""

import os
import subprocess
from pathlib import Path

import pytest

from tools.book import preprocessor
from tools.book.checks import formula_problems
from tools.book.command import mdbook
from tools.book.formulas import FormulaError, formulas, mathml, with_mathml
from tools.book.page import Page


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
