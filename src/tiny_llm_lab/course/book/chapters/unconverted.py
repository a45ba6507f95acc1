"""Formulas that the built book does not show: it was built without its preprocessor."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from tiny_llm_lab.course.book.chapters.formulas import formulas
from tiny_llm_lab.course.book.page import Page


def unconverted(built: Path, pages: Iterable[Page]) -> Iterator[str]:
    """Pages of the folder `built` that show fewer formulas than they have; pages that are not in it pass."""
    for page in pages:
        path = built / f"{page.name.removesuffix('.md')}.html"
        wanted = len(list(formulas(page.text)))
        shown = path.read_text(encoding="utf-8").count("<math") if path.exists() else wanted
        if shown < wanted:
            yield f"{page.name}: {wanted} formula(s), and the built page shows {shown}"
