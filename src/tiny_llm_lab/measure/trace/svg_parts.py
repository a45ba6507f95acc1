"""Boxes, lines and words of an SVG, and the colours of both pictures."""

from collections.abc import Iterable
from typing import Final
from xml.sax.saxutils import escape

CSS: Final = """
svg{font:12px system-ui,sans-serif;background:#fff}
.paper{fill:#fff}.ink{fill:#1f2328}.soft{fill:#59636e}.line{stroke:#d1d9e0}
.mid{text-anchor:middle}.end{text-anchor:end}.title{font:600 14px system-ui,sans-serif}
.prefill{fill:#2a78b8}.decode{fill:#c2610c}.on{fill:#fff}.num{font-size:10px}
.waiting{stroke:#8b949e;stroke-dasharray:2 3;stroke-width:1.5}
.budget{stroke:#cf222e;stroke-dasharray:6 4;stroke-width:1.5}
@media(prefers-color-scheme:dark){svg{background:#0d1117}
.paper{fill:#0d1117}.ink{fill:#e6edf3}.soft{fill:#9198a1}.line{stroke:#30363d}
.prefill{fill:#58a6ff}.decode{fill:#f0883e}.on{fill:#0d1117}
.budget{stroke:#ff7b72}}
"""


def document(width: float, height: float, title: str, parts: Iterable[str]) -> str:
    """The whole SVG: `parts` on paper, under a title."""
    size = f'viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">',
        f"<title>{escape(title)}</title><style>{CSS}</style>",
        f'<rect class="paper" width="{width:g}" height="{height:g}"/>',
        text(16, 24, title, "ink title"),
        *parts,
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def box(css: str, x: float, y: float, width: float, height: float, tooltip: str = "") -> str:
    place = f'x="{x:g}" y="{y:.4g}" width="{width:.4g}" height="{height:.4g}"'
    return f'<rect class="{css}" {place}>{_tooltip(tooltip)}</rect>'


def line(css: str, x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<path class="{css}" d="M{x1:g} {y1:g}L{x2:g} {y2:g}"/>'


def text(x: float, y: float, said: str, css: str, *, tooltip: str = "", turned: bool = False) -> str:
    turn = f' transform="rotate(-90 {x:g} {y:g})"' if turned else ""
    return f'<text class="{css}" x="{x:g}" y="{y:g}"{turn}>{_tooltip(tooltip)}{escape(said)}</text>'


def _tooltip(text: str) -> str:
    return f"<title>{escape(text)}</title>" if text else ""
