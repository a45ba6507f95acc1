"""The files of the page, as they are: nothing from elsewhere, nothing inline, nothing that is not there."""

import re

import pytest

from tiny_llm_lab.serving.server.routes.page import FOLDER

FILES = sorted(path for path in FOLDER.iterdir())
SCRIPTS = [path for path in FILES if path.suffix == ".js"]
OF_PAGE = [path for path in SCRIPTS if path.name != "replay.js"]  # which has the book's frame around it
HTML = (FOLDER / "index.html").read_text()
IDS = set(re.findall(r'\bid="([^"]+)"', HTML))


def all_of(pattern, paths):
    return {found for path in paths for found in re.findall(pattern, path.read_text())}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_file_is_short_and_asks_no_other_host(path):
    text = path.read_text().replace("http://www.w3.org/2000/svg", "")  # a name, not an address
    assert len(text.splitlines()) < 250
    assert not re.search(r"https?://|[\"'(]//\w", text)


def test_the_policy_finds_nothing_to_forbid():
    assert not re.search(r"\son\w+=|\sstyle=|<style|javascript:", HTML)
    assert re.findall(r"<script[^>]*>([^<]*)</script>", HTML) == [""]
    assert not all_of(r"\beval\(|innerHTML|new Function|insertAdjacentHTML", SCRIPTS)


def test_ids_in_scripts_are_on_the_page():
    used = all_of(r'(?:getElementById|element|write|readout|onClick)\("([a-z-]+)"', OF_PAGE)
    assert len(used) > 20 and used <= IDS
    assert all_of(r"#([a-z][a-z-]*)(?=[ ,:{\[])", [FOLDER / "style.css", FOLDER / "figures.css"]) <= IDS
    named = re.findall(r'(?:for|aria-labelledby|aria-describedby)="([^"]+)"', HTML)
    assert {name for names in named for name in names.split()} <= IDS


def test_every_module_is_there_and_used():
    imports = all_of(r'from "\./([\w.]+)"', SCRIPTS)
    assert imports <= {path.name for path in SCRIPTS}
    loaded = set(re.findall(r'"page/([\w.]+)"', HTML))
    assert loaded | imports == {path.name for path in FILES} - {"index.html", "replay.js"}


def test_every_control_has_a_name():
    labels = set(re.findall(r'<label for="([^"]+)"', HTML))
    for tag, attributes in re.findall(r"<(input|textarea|canvas)\b([^>]*)>", HTML):
        name = re.search(r'id="([^"]+)"', attributes)
        assert name is not None, tag
        wrapped = re.search(rf'<label[^>]*>(?:(?!</label>).)*id="{name[1]}"', HTML, re.DOTALL)
        assert name[1] in labels or wrapped or "aria-label=" in attributes, name[1]
