"""The live page in a browser: what a person sees and does there."""

import pytest
from tests.helpers.chat_checkpoint import qwen_like_folder
from tests.helpers.chromium import chromium
from tests.helpers.scripted_engine import ScriptedEngine, scripted_server
from tests.helpers.serve_process import serve_process

WAIT_MS = 120_000


@pytest.fixture(scope="module")
def browser():
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def address(browser):
    with serve_process() as found:
        yield found


@pytest.fixture
def page(browser, address):
    """The page, connected; at the end it has reported no error and asked no other host."""
    page = browser.new_page(viewport={"width": 1400, "height": 1000})
    page.set_default_timeout(WAIT_MS)
    strange = []
    page.on("console", lambda message: strange.append(message.text))
    page.on("pageerror", lambda error: strange.append(str(error)))
    page.on("request", lambda request: request.url.startswith(address) or strange.append(request.url))
    page.goto(address)
    page.wait_for_selector("#demo:enabled")
    yield page
    page.close()
    assert strange == []


def until(page, condition, argument=None):
    """Wait for `condition`; Playwright's own wait would be an eval in the page, which its policy forbids."""
    for _ in range(WAIT_MS // 100):
        if page.evaluate(condition, argument):
            return
        page.wait_for_timeout(100)
    raise AssertionError(condition)


def gap(page, name="largest-gap"):
    return float(page.get_attribute(f"#{name}", "data-ms") or 0)


def test_a_chat_streams_and_stops(page):
    page.fill("#chat-input", "Once upon a time")
    page.keyboard.press("Enter")
    until(page, "document.querySelector('.assistant')?.textContent.length > 10")
    page.wait_for_selector("#chat-send:visible")
    page.fill("#chat-input", "And then?")
    page.keyboard.press("Enter")
    page.wait_for_selector("#chat-stop:visible")
    page.keyboard.press("Escape")
    page.wait_for_selector("#chat-send:visible")
    assert page.locator(".problem").count() == 0


def test_the_spike_of_a_long_prompt_goes_with_chunked_prefill(page):
    gaps = {}
    page.click("#background")
    page.wait_for_selector("#background[aria-pressed=true]")
    for is_on in (False, True):
        with page.expect_response("**/live/config"):
            page.set_checked("#chunked", is_on)
        page.evaluate("document.getElementById('budget').value = 256")
        with page.expect_response("**/live/config"):
            page.dispatch_event("#budget", "change")
        page.wait_for_timeout(500)
        page.click("#reset")
        page.click("#long-prompt")
        page.wait_for_selector("#long-prompt:enabled")
        gaps[is_on] = gap(page)
    page.click("#background")
    print(f"largest gap: chunked prefill off {gaps[False]:.0f} ms, on {gaps[True]:.0f} ms")
    assert gaps[False] > 2 * gaps[True] > 0


def test_one_click_shows_both(page):
    page.click("#demo")
    page.wait_for_selector("#demo:enabled")
    until(page, "document.getElementById('largest-gap-on').dataset.ms !== ''")
    assert gap(page, "largest-gap-off") > 2 * gap(page, "largest-gap-on") > 0
    assert "in one step" in page.inner_text("#demo-status")
    assert page.get_attribute("#pause", "aria-pressed") == "true", "the picture stays"


def test_the_picture_is_read_with_the_keyboard(page):
    page.click("#long-prompt")
    page.wait_for_selector("#pause[aria-pressed=true]")
    page.focus("#timeline")
    page.keyboard.press("Home")
    until(page, "document.getElementById('readout').textContent.startsWith('Step ')")
    first = page.inner_text("#readout")
    page.keyboard.press("ArrowRight")
    until(page, "before => document.getElementById('readout').textContent !== before", first)
    assert "tokens of" in first


@pytest.mark.parametrize("width", [360, 1400])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_is_wider_than_the_screen(page, width, scheme):
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size({"width": width, "height": 740})
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_a_server_with_a_key_asks_for_it(browser):
    with serve_process("--api-key", "secret") as address:
        page = browser.new_page()
        page.set_default_timeout(WAIT_MS)
        page.goto(address)
        page.wait_for_selector("#key-dialog[open]")
        page.fill("#key", "wrong")
        page.keyboard.press("Enter")
        page.wait_for_selector("#key-dialog[open]")
        page.fill("#key", "secret")
        page.keyboard.press("Enter")
        page.wait_for_selector("#demo:enabled")
        page.click("#long-prompt")
        page.wait_for_selector("#long-prompt:enabled")
        assert page.inner_text("#demo-status") == ""
        page.click("#metrics")
        page.wait_for_url("blob:**")
        assert "tiny_llm:num_requests_running" in page.inner_text("body")
        page.close()
        page = browser.new_page()
        page.set_default_timeout(WAIT_MS)
        page.goto(address)
        page.wait_for_selector("#key-dialog[open]")
        page.keyboard.press("Escape")
        until(page, "document.getElementById('status').textContent.includes('load the page again')")
        page.close()


def test_what_a_model_writes_is_text(browser, tmp_path):
    qwen_like_folder(tmp_path / "qwen")
    engine = ScriptedEngine()
    engine.script = '<img src=x onerror="document.title = 7"><script>document.title = 7</script>'
    with scripted_server(tmp_path / "qwen", engine) as url:
        page = browser.new_page()
        page.set_default_timeout(WAIT_MS)
        page.goto(url.removesuffix("v1"))
        page.wait_for_selector("#demo:enabled")
        page.fill("#chat-input", engine.script)
        page.keyboard.press("Enter")
        until(page, "t => document.querySelector('.assistant')?.textContent === t", engine.script)
        assert page.inner_text(".user") == engine.script
        assert page.query_selector("#chat-log img, #chat-log script") is None and page.title() != "7"
        page.close()
