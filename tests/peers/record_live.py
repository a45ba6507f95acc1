"""Makes docs/live.png and book/src/live/trace.js: the live page's demonstration, seen and recorded.

    python tests/peers/record_live.py

Needs Chromium and Playwright, see tests/helpers/chromium.py. Run it on a machine that does nothing else, and
put the two gaps that it prints into README.md.
"""

import json
import os
import threading
from pathlib import Path

import httpx2
from PIL import Image
from tests.helpers.chromium import chromium
from tests.helpers.serve_process import serve_process

ROOT = Path(__file__).parents[2]
PICTURE = ROOT / "docs" / "live.png"
TRACE = ROOT / "book" / "src" / "live" / "trace.js"
AROUND = 60  # events before the long prompt and after it


def listen(address, events):
    """Append what the server tells its page, until the server ends."""
    try:
        with httpx2.stream("GET", f"{address}/live/events", timeout=None) as response:
            for line in response.iter_lines():
                if line.startswith("data: "):
                    events.extend(json.loads(line.removeprefix("data: ")))
    except httpx2.HTTPError:
        return


def halves(events):
    """The demonstration without and with chunked prefill, each from what the page knew when it began."""
    changes = [i for i, each in enumerate(events) if each["type"] == "config"][-2:]
    found = {}
    for name, begin, end in zip(("off", "on"), changes, [changes[1], len(events)], strict=True):
        gone = {each["request"] for each in events[:begin] if each["type"] == "left"}
        known = [each for each in events[:begin] if each["type"] == "added" and each["request"] not in gone]
        found[name] = [events[0], *excerpt([*known, *events[begin:end]])]
    return found


def excerpt(events):
    """The steps around the long prompt's, with requests numbered and times counted from the first."""
    long = [i for i, each in enumerate(events) if any(not d and n >= 32 for _, n, d in each.get("parts", ()))]
    first, last = max(0, long[0] - AROUND), long[-1] + AROUND
    found = [each for each in events[:first] if each["type"] in ("config", "added")] + events[first:last]
    zero = next(each["start_ms"] for each in found if each["type"] == "step")
    lowest = min(each["request"] for each in found if each["type"] == "added") - 1
    return [shifted(each, zero, lowest) for each in found]


def shifted(event, zero, lowest):
    """An event with times since `zero` and requests numbered after `lowest`."""
    times = {name: round(event[name] - zero, 2) for name in ("start_ms", "end_ms") if name in event}
    own = {"request": event["request"] - lowest} if "request" in event else {}
    rows = {
        name: [[row[0] - lowest, *row[1:]] for row in event[name]]
        for name in ("parts", "blocks", "tokens")
        if name in event
    }
    return event | times | own | rows


def record():
    events = []
    with serve_process("--threads", str(os.cpu_count())) as address, chromium() as browser:
        page = browser.new_page(viewport={"width": 1400, "height": 1000}, color_scheme="light")
        page.set_default_timeout(120_000)
        page.goto(address)
        page.wait_for_selector("#demo:enabled")
        page.fill("#chat-input", "Once upon a time")
        page.keyboard.press("Enter")
        page.wait_for_selector("#chat-stop:visible")
        page.wait_for_selector("#chat-send:visible")
        threading.Thread(target=listen, args=(address, events), daemon=True).start()
        page.click("#demo")
        page.wait_for_selector("#demo:enabled")
        page.wait_for_timeout(500)
        page.mouse.move(0, 0)
        page.screenshot(path=PICTURE, full_page=True)
        print(page.inner_text("#demo-status"))
    with Image.open(PICTURE) as picture:
        few = picture.convert("RGB").quantize(128, dither=Image.Dither.NONE)
    few.save(PICTURE, optimize=True)
    text = json.dumps(halves(events), separators=(",", ":"))
    TRACE.write_text(f"globalThis.tinyLlmTrace = {text};\n", encoding="utf-8")


if __name__ == "__main__":
    record()
