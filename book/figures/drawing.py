"""The one way to draw a figure of the book: SVG of a phone's width, readable in dark and in light."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Final

WIDTH: Final = 480  # units of the view box; with text of 13 a figure is read on a phone without zooming
FONT: Final = 13
_MARGIN: Final = 12
# role: (colour on a light card, colour on a dark card)
_COLOURS: Final = {
    "ink": ("#1c2733", "#e8edf2"),
    "grey": ("#5b6b7a", "#a3b1bf"),
    "faint": ("#d5dde5", "#3a4856"),
    "card": ("#ffffff", "#17202b"),
    "blue": ("#2a78b8", "#6fb4e8"),
    "orange": ("#c96a12", "#f0a35a"),
    "green": ("#2e8b57", "#6fce9a"),
    "purple": ("#7b4fb5", "#b797e6"),
    "red": ("#c0392b", "#f08070"),
}


class Drawing:
    """Shapes on a card, from the top left corner. Colours are roles: ink, grey, faint, card, blue, …

    A card has a background of its own, so it is readable on a page of any colour; it is dark where the
    reader's system is.
    """

    def __init__(self, title: str, *, width: int = WIDTH) -> None:
        """`title`: one sentence of what can be seen, for those who do not see it."""
        self._title, self._width = title, width
        self._parts: list[str] = []
        self._bottom = 0.0

    def text(
        self,
        x: float,
        y: float,
        text: str,
        role: str = "ink",
        *,
        anchor: str = "start",
        bold: bool = False,
        size: float = FONT,
    ) -> None:
        """Words whose baseline is at y; `anchor` is start, middle or end."""
        weight = ' font-weight="bold"' if bold else ""
        at = f'x="{x:g}" y="{y:g}" text-anchor="{anchor}" font-size="{size:g}"{weight}'
        self._add(f'<text class="{_known(role)}" {at}>{escape(text)}</text>', y + 4)

    def box(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        role: str = "blue",
        *,
        strength: float = 1.0,
        label: str = "",
        is_outline: bool = False,
    ) -> None:
        """A rectangle. `strength` 0 to 1 mixes the colour with the card's; a label stands in its middle."""
        at = f'x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="2"'
        kind = f'class="{_known(role)} line"' if is_outline else f'class="{_known(role)}"'
        fade = "" if is_outline or strength >= 1 else f' fill-opacity="{max(strength, 0):.2f}"'
        self._add(f"<rect {kind} {at}{fade}/>", y + height)
        if label:
            on = "card" if strength > 0.55 and not is_outline and role not in ("card", "faint") else "ink"
            self.text(x + width / 2, y + height / 2 + FONT * 0.35, label, on, anchor="middle")

    def line(
        self,
        points: Sequence[tuple[float, float]],
        role: str = "grey",
        *,
        width: float = 1.5,
        is_dashed: bool = False,
        has_arrow: bool = False,
    ) -> None:
        """A line through (x, y) points, with an arrow at its end where that is asked for."""
        path = "M" + "L".join(f"{x:g} {y:g}" for x, y in points)
        dashes = ' stroke-dasharray="4 3"' if is_dashed else ""
        arrow = f' marker-end="url(#to-{role})"' if has_arrow else ""
        style = f'stroke-width="{width:g}"{dashes}{arrow}'
        self._add(f'<path class="{_known(role)} line" d="{path}" {style}/>', max(y for _, y in points))

    def dot(self, x: float, y: float, radius: float = 4, role: str = "ink") -> None:
        """A filled circle."""
        self._add(f'<circle class="{_known(role)}" cx="{x:g}" cy="{y:g}" r="{radius:g}"/>', y + radius)

    def ring(self, x: float, y: float, radius: float, role: str = "faint") -> None:
        """An empty circle."""
        at = f'cx="{x:g}" cy="{y:g}" r="{radius:g}"'
        self._add(f'<circle class="{_known(role)} line" {at}/>', y + radius)

    def grid(
        self,
        x: float,
        y: float,
        rows: Sequence[Sequence[float]],
        role: str = "blue",
        *,
        cell: float = 22,
        labels: Sequence[Sequence[str]] | None = None,
    ) -> None:
        """A matrix of strengths 0 to 1 as shaded cells, with text in them where there are labels."""
        for i, row in enumerate(rows):
            for j, strength in enumerate(row):
                left, top = x + j * cell, y + i * cell
                self.box(left, top, cell - 2, cell - 2, "faint", strength=0.4)
                self.box(left, top, cell - 2, cell - 2, role, strength=strength)
                if labels and labels[i][j]:
                    on = "card" if strength > 0.55 else "ink"
                    middle = (left + cell / 2 - 1, top + cell / 2 + 3)
                    self.text(*middle, labels[i][j], on, anchor="middle", size=min(11, cell * 0.5))

    def svg(self) -> str:
        """The finished file."""
        return strip({"only": self})

    def _add(self, part: str, bottom: float) -> None:
        self._parts.append(part)
        self._bottom = max(self._bottom, bottom)


def strip(frames: Mapping[str, Drawing]) -> str:
    """A file of drawings below one another, of one size: `file.svg#NAME` shows one, `file.svg` the first."""
    first = next(iter(frames.values()))
    width, height = first._width, max(each._bottom for each in frames.values()) + _MARGIN
    parts = []
    for place, (name, frame) in enumerate(frames.items()):
        top = place * height
        card = '<rect class="card" width="100%" height="100%" rx="8"/>'
        shapes = "\n".join([card, *frame._parts])
        if len(frames) > 1:
            view = f'<view id="{name}" viewBox="0 {top:g} {width} {height:g}"/>'
            shapes = f'{view}\n<g transform="translate(0 {top:g})">\n{shapes}\n</g>'
        parts.append(shapes)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height:g}" '
        f'width="{width}" height="{height:g}" font-family="sans-serif" role="img">\n'
        f"<title>{escape(first._title)}</title>\n<style>\n{_style()}</style>\n<defs>{_arrows()}</defs>\n"
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def _known(role: str) -> str:
    if role not in _COLOURS:
        raise ValueError(f"no such role: {role}: use {', '.join(_COLOURS)}")
    return role


def _style() -> str:
    def rules(place: int) -> str:
        return "".join(
            f".{role}{{fill:{colours[place]}}}.{role}.line{{fill:none;stroke:{colours[place]}}}\n"
            for role, colours in _COLOURS.items()
        )

    return f"{rules(0)}@media (prefers-color-scheme: dark) {{\n{rules(1)}}}\n"


def _arrows() -> str:
    head = 'viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto"'
    return "".join(
        f'<marker id="to-{role}" {head}><path class="{role}" d="M0 0L8 4L0 8z"/></marker>'
        for role in _COLOURS
    )
