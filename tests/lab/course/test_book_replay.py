"""The live page's drawings as one script for the book."""

import re
from pathlib import Path

import pytest

from tiny_llm_lab.course.book_replay import MODULES, bundle, replay_files
from tiny_llm_lab.types import UserError

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "src" / "tiny_llm_lab" / "server" / "page"


def test_the_book_has_the_drawings_of_the_page() -> None:
    for path, text in replay_files(ROOT).items():
        assert path.read_text(encoding="utf-8") == text, f"`./pdmw run book` writes {path.name} anew"


def test_the_script_has_every_module_that_it_needs_and_in_order() -> None:
    seen: set[str] = set()
    for name in MODULES:
        imports = set(re.findall(r'from "\./(\w+)\.js"', (PAGE / f"{name}.js").read_text()))
        assert imports <= seen, name
        seen.add(name)
    script = bundle([PAGE / f"{name}.js" for name in MODULES])
    assert not re.search(r"^(import|export)\b", script, re.MULTILINE)


def test_ids_in_the_replay_are_in_its_frame() -> None:
    ids = set(re.findall(r'\bid="([^"]+)"', (ROOT / "book" / "src" / "live" / "replay.html").read_text()))
    script = bundle([PAGE / f"{name}.js" for name in MODULES])
    assert set(re.findall(r'(?:getElementById|write)\("([a-z-]+)"', script)) <= ids


def test_a_name_of_two_modules_is_refused(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.js").write_text("export function same() {}\n")
    with pytest.raises(UserError, match="same"):
        bundle([tmp_path / "a.js", tmp_path / "b.js"])
