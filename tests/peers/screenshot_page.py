"""Makes docs/live.png: the live page after its demonstration.

    python tests/peers/screenshot_page.py

Needs Chromium and Playwright, see tests/helpers/chromium.py. Best on a machine that does nothing else.
"""

from pathlib import Path
from typing import Final

from PIL import Image
from tests.helpers.chromium import chromium
from tests.helpers.serve_process import serve_process

TARGET: Final = Path(__file__).parents[2] / "docs" / "live.png"


def shoot() -> None:
    with serve_process() as address, chromium() as browser:
        page = browser.new_page(viewport={"width": 1400, "height": 1000}, color_scheme="light")
        page.set_default_timeout(120_000)
        page.goto(address)
        page.wait_for_selector("#demo:enabled")
        page.fill("#chat-input", "Once upon a time")
        page.keyboard.press("Enter")
        page.wait_for_selector("#chat-stop:visible")
        page.wait_for_selector("#chat-send:visible")
        page.click("#demo")
        page.wait_for_selector("#demo:enabled")
        page.wait_for_timeout(500)
        page.mouse.move(0, 0)
        page.screenshot(path=TARGET, full_page=True)
        with Image.open(TARGET) as picture:
            few = picture.convert("RGB").quantize(128, dither=Image.Dither.NONE)
        few.save(TARGET, optimize=True)
        print(page.inner_text("#demo-status"))
    print(f"{TARGET}: {TARGET.stat().st_size} bytes")


if __name__ == "__main__":
    shoot()
