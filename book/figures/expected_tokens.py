"""Draws book/src/figures/expected-tokens.svg: tokens a step brings, for drafts of 2, 4 and 8 tokens."""

from typing import Final

from book.figures.drawing import Drawing

LENGTHS: Final = {2: "green", 4: "blue", 8: "orange"}
_LEFT, _TOP, _WIDTH, _HEIGHT = 48, 42, 350, 200


def expected_tokens(alpha: float, num_draft_tokens: int) -> float:
    """Equation 1 of Leviathan et al.: accepted tokens and one more, if each is accepted with alpha."""
    return sum(alpha**i for i in range(num_draft_tokens + 1))


def draw() -> str:
    """The figure as SVG."""
    d = Drawing("Expected tokens of a step over the acceptance rate, for drafts of 2, 4 and 8 tokens.")
    d.text(12, 22, "Tokens a step brings on average", bold=True)
    for value in range(1, 10, 2):
        y = _y(value)
        d.line([(_LEFT, y), (_LEFT + _WIDTH, y)], "faint", width=1)
        d.text(_LEFT - 8, y + 4, str(value), "grey", anchor="end")
    for tenth in range(0, 11, 2):
        d.text(_x(tenth / 10), _TOP + _HEIGHT + 18, f"{tenth / 10:g}", "grey", anchor="middle")
    for length, role in LENGTHS.items():
        points = [(_x(i / 40), round(_y(expected_tokens(i / 40, length)), 1)) for i in range(41)]
        d.line(points, role, width=2)
        d.text(_LEFT + _WIDTH + 8, _y(length + 1) + 4, f"γ = {length}", role, bold=True)
    d.text(_LEFT + _WIDTH / 2, _TOP + _HEIGHT + 38, "acceptance rate α", "grey", anchor="middle")
    return d.svg()


def _x(alpha: float) -> float:
    return round(_LEFT + alpha * _WIDTH, 1)


def _y(tokens: float) -> float:
    return _TOP + _HEIGHT - (tokens - 1) / 8 * _HEIGHT
