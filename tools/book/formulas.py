"""Formulas of the pages: LaTeX between dollars, turned into MathML, which browsers show without a script.

`$…$` is part of a line and `$$…$$` is a paragraph. Code, comments and tags are left alone, `\\$` is a dollar,
and "$5 or $6" is no formula: a closing dollar has no blank before it and no digit behind it.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from xml.etree import ElementTree

from tiny_llm_lab.types import UserError

_FORMULA = re.compile(
    r"^[ \t]*(?P<fence>`{3,}|~{3,}).*?(?:^[ \t]*(?P=fence)[^\n]*$|\Z)"
    r"|(?<!`)(?P<ticks>`+)(?!`)(?:(?!\n[ \t]*\n).)+?(?<!`)(?P=ticks)(?!`)"
    r"|<!--.*?-->"
    r"|</?[A-Za-z][^<>]*>"
    r"|\\\$"
    r"|\$\$(?P<display>(?:(?!\$\$|\n[ \t]*\n).)+)\$\$"
    r"|(?<!\$)\$(?P<inline>(?=\S)(?:\\\$|(?!\n[ \t]*\n)[^$`])+?(?<=\S))\$(?![$\d])",
    re.DOTALL | re.MULTILINE,
)
_TEXT = re.compile(r"\\text\w*\{[^{}]*\}")
_TAG = re.compile(r"(<[^>]*>)")
# What Markdown or one of its tables would read as its own syntax between two tags.
_ACTIVE = {ord(mark): f"&#{ord(mark)};" for mark in "*_`[]|~"}
# The converter shows an unknown name as it was written.
_UNKNOWN = re.compile(r"\\(?:[A-Za-z]+|.)|&(?!#?\w+;)")
# Common LaTeX that the converter lacks, written with what it has.
_SUPPORTED = (
    (re.compile(r"\\arg(?![A-Za-z])"), r"\\operatorname{arg}"),
    (re.compile(r"\\(begin|end)\{aligned\}"), r"\\\1{split}"),
    (re.compile(r"\\(max|min)_"), r"\\\1\\limits_"),
)
# Upright letters are one word, and a function's name is not an operator with wide spaces.
_LETTERS = re.compile(r'(?:<mi mathvariant="normal">[^<]</mi>){2,}')
_FUNCTION = re.compile(r"<mo(?=>[A-Za-z]{2,}<)")
# The converter takes these for letters without space between them: "a cos p" would be one word.
_NAMED = re.compile(
    r"(?P<factor></(?:mi|mn|msub|msup|mfrac)>)?<mi>(?P<name>cos|sin|exp|log|ln)</mi>"
    r'(?P<argument><mo stretchy="false">&#x00028;)?'
)
_NUM_CHILDREN = {"mfrac": 2, "msub": 2, "msup": 2, "munder": 2, "mover": 2, "msubsup": 3, "munderover": 3}


class FormulaError(ValueError):
    """LaTeX that we cannot show; the message says why."""


@dataclass(frozen=True)
class Formula:
    """LaTeX between dollars, and the number of the line in which it begins."""

    latex: str
    is_display: bool
    line: int


def formulas(text: str) -> Iterator[Formula]:
    """The formulas of a page, in order."""
    for match in _FORMULA.finditer(text):
        if (latex := _latex(match)) is not None:
            line = text.count("\n", 0, match.start()) + 1
            yield Formula(latex, match["display"] is not None, line)


def without_formulas(text: str) -> str:
    """A page's text on the same lines, without its formulas."""
    return _FORMULA.sub(
        lambda match: match[0] if _latex(match) is None else "\n" * match[0].count("\n"), text
    )


def with_mathml(text: str) -> str:
    """A page's text with MathML in the place of its formulas; one that cannot be shown stays as it is."""

    def shown(match: re.Match[str]) -> str:
        latex = _latex(match)
        if latex is None:
            return match[0]
        try:
            if match["display"] is None:
                return mathml(latex)
            parts = "".join(mathml(part, is_display=True) for part in _side_by_side(latex))
            return f'<div class="formula">{parts}</div>'
        except FormulaError:
            return match[0]

    return _FORMULA.sub(shown, text)


def mathml(latex: str, *, is_display: bool = False) -> str:
    """LaTeX as one line of MathML.

    Raises FormulaError for LaTeX that the converter does not know, and UserError where it is not installed.
    """
    latex = _TEXT.sub(lambda match: match[0].replace(r"\_", "_"), " ".join(latex.split()))
    for pattern, plain in _SUPPORTED:
        latex = pattern.sub(plain, latex)
    _check_braces(latex)
    try:
        math = _converter()(latex, display="block" if is_display else "inline")
    except UserError:
        raise
    except Exception as error:  # a dozen kinds of its own, most without words, and IndexError
        name = type(error).__name__.removesuffix("Error")
        raise FormulaError(re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).lower()) from error
    _check(math)
    math = _LETTERS.sub(lambda word: f"<mi>{_TAG.sub('', word[0])}</mi>", math)
    math = _NAMED.sub(_with_space, math)
    math = _FUNCTION.sub('<mo lspace="0" rspace="0.17em"', math)
    parts = _TAG.split(math)
    return "".join(part if part.startswith("<") else part.translate(_ACTIVE) for part in parts)


def _with_space(match: re.Match[str]) -> str:
    before, after = "0.17em" if match["factor"] else "0", "0" if match["argument"] else "0.17em"
    name = f'<mo lspace="{before}" rspace="{after}">{match["name"]}</mo>'
    return f"{match['factor'] or ''}{name}{match['argument'] or ''}"


def _converter() -> Callable[..., str]:
    # A development tool like mdBook, so that commands start in an installation without it.
    try:
        return import_module("latex2mathml.converter").convert
    except ImportError as error:
        raise UserError("latex2mathml is not installed: run ./pdmw install") from error


def _latex(match: re.Match[str]) -> str | None:
    return match["display"] or match["inline"]


def _side_by_side(latex: str) -> list[str]:
    """The formulas of a paragraph: those between \\qquad go below one another where the page is narrow."""
    parts = latex.split(r"\qquad")
    is_one = any(part.count("{") != part.count("}") or r"\begin" in part for part in parts)
    return [latex] if is_one else parts


def _check_braces(latex: str) -> None:
    # The converter takes "\frac{a" for "\frac{a}{}", and shows a closing brace too many.
    depth = 0
    for mark in re.findall(r"(?<!\\)(?:\\\\)*([{}])", latex):
        depth += 1 if mark == "{" else -1
        if depth < 0:
            break
    if depth:
        raise FormulaError("braces do not match")


def _check(math: str) -> None:
    """Raise FormulaError for MathML that differs from what was written."""
    if 'linebreak="newline"' in math:
        raise FormulaError(r"\\ needs an environment such as align*")
    if found := _UNKNOWN.search(math):
        raise FormulaError(f"unknown: {found[0]}")
    try:
        elements = list(ElementTree.fromstring(math).iter())
    except ElementTree.ParseError as error:
        raise FormulaError("a text has a character of HTML, such as <") from error
    for element in elements:
        name = element.tag.rpartition("}")[2]
        if len(element) != _NUM_CHILDREN.get(name, len(element)):
            raise FormulaError(f"an argument is missing ({name})")
