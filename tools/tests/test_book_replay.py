"""The live page's drawings as one script for the book."""

import json
import re
from pathlib import Path

import pytest

from tiny_llm_lab.types import UserError
from tools.book.command import MODULES, bundle, write_replay

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "src" / "tiny_llm_lab" / "serving" / "server" / "page"


@pytest.fixture
def live(tmp_path):
    """The folder of the replay, with what is generated for it."""
    (tmp_path / "src").symlink_to(ROOT / "src")
    folder = tmp_path / "book/src/live"
    folder.mkdir(parents=True)
    write_replay(tmp_path)
    return folder


def test_the_book_gets_the_drawings_of_the_page(live):
    assert (live / "replay.js").read_text() == bundle([PAGE / f"{name}.js" for name in MODULES])


def test_the_replay_has_the_dark_colours_in_a_dark_theme_too(live):
    css, dark = (live / "figures.css").read_text(), r"{([^{}]*--text: #e8ecf3;[^{}]*)}"
    (of_system,) = re.findall(rf"@media \(prefers-color-scheme: dark\) {{\s*:root:not\(.light\) {dark}", css)
    (of_theme,) = re.findall(rf":root.dark {dark}", css)
    (of_page,) = re.findall(dark, (PAGE / "figures.css").read_text())
    assert of_system == of_theme == of_page


def test_the_script_has_every_module_that_it_needs_and_in_order():
    seen = set()
    for name in MODULES:
        imports = set(re.findall(r'from "\./(\w+)\.js"', (PAGE / f"{name}.js").read_text()))
        assert imports <= seen, name
        seen.add(name)
    script = bundle([PAGE / f"{name}.js" for name in MODULES])
    assert not re.search(r"^(import|export)\b", script, re.MULTILINE)


def test_ids_in_the_replay_are_in_its_frame():
    ids = set(re.findall(r'\bid="([^"]+)"', (ROOT / "book" / "src" / "live" / "replay.html").read_text()))
    script = bundle([PAGE / f"{name}.js" for name in MODULES])
    assert set(re.findall(r'(?:getElementById|write)\("([a-z-]+)"', script)) <= ids


def test_a_name_of_two_modules_is_refused(tmp_path):
    for name in ("a", "b"):
        (tmp_path / f"{name}.js").write_text("export function same() {}\n")
    with pytest.raises(UserError, match="same"):
        bundle([tmp_path / "a.js", tmp_path / "b.js"])


def _largest_gap(events):
    """As the page counts it: between the ends of the steps that brought a request a token, in ms."""
    last, end, largest = dict[int, float](), 0.0, 0.0
    for each in events:
        end = each.get("end_ms", end)
        for request, _ in each["tokens"] if each["type"] == "sampled" else []:
            largest = max(largest, end - last.get(request, end))
            last[request] = end
    return largest


def test_the_readme_has_the_gaps_of_the_recording_that_the_book_plays():
    text = (ROOT / "book" / "src" / "live" / "trace.js").read_text("utf-8")
    trace = json.loads(text.removeprefix("globalThis.tinyLlmTrace = ").rstrip(";\n"))
    off, on = (round(_largest_gap(trace[name])) for name in ("off", "on"))
    readme = (ROOT / "README.md").read_text("utf-8")
    assert f"stalls three answers for {off} ms. In chunks of 256 tokens it stalls them for {on} ms" in readme
