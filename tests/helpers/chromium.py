"""Debian's Chromium, driven by Playwright: neither is needed but for looking at the live page."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

FLAGS = (
    "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
).split()


@contextmanager
def chromium() -> Iterator[Any]:
    """A browser; a test is skipped where there is none."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="`pip install playwright` drives browsers")
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("Chromium is not installed: `apt-get install chromium`")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, headless=True, args=FLAGS)
        try:
            yield browser
        finally:
            browser.close()
