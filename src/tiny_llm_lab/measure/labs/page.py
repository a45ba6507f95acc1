"""One HTML page of lab results: self-contained, for light and dark, for a phone as well."""

import base64
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from jinja2 import Environment, FileSystemLoader

from tiny_llm_lab.measure.labs.result import LabResult

_TEMPLATES: Final = Environment(
    loader=FileSystemLoader(Path(__file__).parent), autoescape=True, trim_blocks=True
)


def page_of(title: str, about: str, results: Sequence[tuple[LabResult, Path]]) -> str:
    """The page; each result comes with the PNG of its figure."""
    labs = [(lab, base64.b64encode(figure.read_bytes()).decode()) for lab, figure in results]
    return _TEMPLATES.get_template("page.html").render(title=title, about=about, labs=labs)
