"""The built book in a browser: below a subfolder of a static host, on a desk and on a phone."""

import os
import subprocess
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from tests.helpers.chromium import chromium

from tools.book import preprocessor
from tools.book.command import mdbook

BOOK = Path(__file__).resolve().parents[2] / "book"
PAGES = [path.stem for path in sorted((BOOK / "src").glob("*.md")) if path.stem != "SUMMARY"]
# What is wider than its place: the page, a table, a figure, a formula. Code blocks may scroll.
TOO_WIDE = """() => {
  const found = [];
  if (document.documentElement.scrollWidth > window.innerWidth) found.push("the page");
  const phone = window.innerWidth < 640;  // there a formula may scroll
  for (const box of document.querySelectorAll(`main .table-wrapper${phone ? "" : ", main .formula"}`)) {
    if (box.scrollWidth > box.clientWidth + 1) {
      found.push(`${box.className} ${box.scrollWidth} > ${box.clientWidth}: ${box.innerText.slice(0, 60)}`);
    }
  }
  const main = document.querySelector("main").getBoundingClientRect();
  for (const image of document.querySelectorAll("main img, main math")) {
    if (image.closest(".formula")) continue;
    if (image.getBoundingClientRect().right > main.right + 1) found.push(image.outerHTML.slice(0, 90));
  }
  return found;
}"""


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def browser():
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def address(browser, tmp_path_factory):
    """Where the book is served, two folders below the host's root."""
    root = tmp_path_factory.mktemp("host")
    command = [mdbook(), "build", "--dest-dir", str(root / "some" / "place"), str(BOOK)]
    environment = os.environ | preprocessor.environment()
    subprocess.run(command, check=True, env=environment | {"MDBOOK_OUTPUT__HTML__SITE_URL": "/some/place/"})
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(root)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/some/place/"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module", params=[(1100, 800), (390, 844)], ids=["desk", "phone"])
def page(browser, address, request):
    """A page of the browser that asked no other host, and got all that it asked for."""
    width, height = request.param
    page = browser.new_page(viewport={"width": width, "height": height}, color_scheme="light")
    strange = []
    page.on("request", lambda asked: asked.url.startswith(address) or strange.append(asked.url))
    page.on("response", lambda got: got.ok or got.status == 304 or strange.append(f"{got.status} {got.url}"))
    page.on("pageerror", lambda error: strange.append(str(error)))
    yield page
    page.close()
    assert strange == []


@pytest.mark.parametrize("name", [*PAGES, "index", "print"])
def test_nothing_is_wider_than_its_place(page, address, name):
    page.goto(f"{address}{name}.html", wait_until="load")
    assert page.evaluate(TOO_WIDE) == []


def test_the_page_of_a_missing_address_finds_its_style_at_any_depth(browser, address):
    html = (browser.new_page().goto(f"{address}404.html")).text()
    assert '<base href="/some/place/">' in html
