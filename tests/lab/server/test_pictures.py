"""Pictures in all three APIs: where they are in the prompt, what is refused, and from where they may come."""

import threading
from concurrent.futures import ThreadPoolExecutor

import httpx2
import pytest
from tests.helpers.picture_files import data_url, file_of, picture
from tests.helpers.scripted_client import FLAT, HI, TOOL, scripted_client

from tiny_llm_lab.runtime.pictures import processor as processing
from tiny_llm_lab.runtime.pictures.decoding import MAX_BYTES
from tiny_llm_lab.runtime.pictures.processor import PictureProcessor
from tiny_llm_lab.serving.async_engine.engine import AsyncEngine
from tiny_llm_lab.serving.server.media import fetched, local_file
from tiny_llm_lab.serving.server.prompts.reuse import num_common
from tiny_llm_lab.serving.server.prompts.watch import tokens_of
from tiny_llm_lab.serving.server.settings import ChatSettings
from tiny_llm_lab.types import UserError

A, B = (file_of(picture(*size)) for size in ((320, 256), (300, 300)))
C = file_of(picture(160, 90).resize((1600, 900)))
TYPED = {"type": "text", "text": "Is <|image_pad|> here?"}
SEEN = {"type": "text", "text": "seen"}
TOOLS = {
    "/chat/completions": [TOOL],
    "/responses": [FLAT],
    "/messages": [{"name": "get", "input_schema": {}}],
}


def part(data, **more):
    return {"type": "image_url", "image_url": {"url": data_url(data), **more}}


def item(data, **more):
    return {"type": "input_image", "image_url": data_url(data), **more}


def block(data, **more):
    source = {"type": "base64", "media_type": "image/png", "data": data_url(data)[22:]}
    return {"type": "image", "source": source, **more}


def body_of(path, spelled):
    """A question with A and C, of low detail, and a tool that returns B."""
    asked = {"role": "user", "content": [spelled(A), TYPED, spelled(C, detail="low")]}
    result, name = [SEEN, spelled(B)], {"name": "get"}
    body = {"tools": TOOLS[path]}
    if path == "/responses":
        call = {"type": "function_call", **name, "arguments": "{}", "call_id": "1"}
        return {
            **body,
            "input": [asked, call, {"type": "function_call_output", "call_id": "1", "output": result}],
        }
    if path == "/messages":
        call = [{"type": "tool_use", "id": "1", **name, "input": {}}]
        result = [{"type": "tool_result", "tool_use_id": "1", "content": result}]
        turns = [{"role": "assistant", "content": call}, {"role": "user", "content": result}]
    else:
        call = [{"id": "1", "type": "function", "function": {**name, "arguments": "{}"}}]
        turns = [
            {"role": "assistant", "tool_calls": call},
            {"role": "tool", "tool_call_id": "1", "content": result},
        ]
    return {**body, "messages": [asked, *turns], "max_tokens": 8}


@pytest.fixture(scope="module")
def seer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sees") / "qwen"
    with scripted_client(folder, template="qwen3_vl", sees=True) as client:
        yield client


@pytest.fixture
def added(monkeypatch):
    """The requests that engines get."""
    requests, add = [], AsyncEngine.add
    monkeypatch.setattr(AsyncEngine, "add", lambda *args: (requests.extend(args[1]), add(*args))[1])
    return requests


@pytest.mark.parametrize("spelled", [part, item, block])
@pytest.mark.parametrize("path", TOOLS)
def test_a_picture_has_its_tokens_where_the_message_has_it(seer, added, path, spelled):
    answer = seer.refused(path, **body_of(path, spelled))
    assert answer.status_code == 200, answer.text
    (request,) = added
    processor = PictureProcessor(seer.folder, seer.pictures)
    expected = [processor.read(*each) for each in ((A, 2048), (C, 256), (B, 2048))]
    assert [each.digest for each in request.pictures] == [each.digest for each in expected]
    counts = [each.num_tokens(seer.pictures) for each in expected]
    assert counts == [80, 252, 81]
    first, low, returned = (f"<|vision_start|>{'<|image_pad|>' * n}<|vision_end|>" for n in counts)
    assert f"user\n{first}{TYPED['text']}{low}<|im_end|>" in seer.prompt()
    assert f"<tool_response>\nseen{returned}\n</tool_response>" in seer.prompt()
    assert request.prompt.count(seer.ids["<|image_pad|>"]) == sum(counts), "what was typed is text"
    assert f'"image_tokens":{sum(counts)}' in answer.text


def test_pictures_are_counted_as_they_are_used(seer, added):
    message, chat = body_of("/messages", block), body_of("/chat/completions", part)
    count = seer.refused("/messages/count_tokens", **message).json()["input_tokens"]
    seer.refused("/messages", **message)
    tokens = seer.root("/tokenize", **chat).json()["tokens"]
    usage = seer.refused("/chat/completions", **chat, n=2).json()["usage"]
    one, first, second = added
    assert count == len(one.prompt)
    assert tokens == first.prompt == second.prompt and len(first.pictures) == len(second.pictures) == 3
    assert usage["prompt_tokens"] == len(first.prompt)


def user(*parts):
    return [{"role": "user", "content": [SEEN, *parts]}]


def at(url):
    return {"type": "image_url", "image_url": {"url": url}}


PART = "messages[0].content[1]"


UNREADABLE = [
    ([{"type": "image_url"}], PART, "no picture"),
    ([{"type": "image_url", "image_url": 5}], PART, "not at a known address"),
    ([at("ftp://a/b.png")], PART, "not at a known address"),
    ([at("http://a.example/b.png")], PART, "on the network"),
    ([at("file:///etc/passwd")], PART, "is a local path"),
    ([{"type": "image", "image": "/etc/passwd"}], PART, "not at a known address"),
    ([part(A, detail="huge")], PART, "detail must be one of"),
    ([{"type": "input_audio"}], PART, "is 'input_audio': send text or a picture"),
    ([{"type": "input_image", "file_id": "file-1"}], f"{PART}.file_id", "keeps no files"),
    ([{"type": "image", "source": {"type": "file", "file_id": "1"}}], PART, "no picture"),
    ([part(A), part(A[:100])], "messages[0].content[2]", "is damaged"),
    ([part(b"<svg/>")], PART, "is no PNG"),
    ([part(A)] * 17, "messages[0].content[17]", "one picture too many"),
    # With its head alone it is too long for the rest of the context: a damaged body is never decoded.
    ([part(C), part(C), part(C[:5000])], "messages", "at least 4201 tokens"),
]


@pytest.mark.parametrize(("parts", "param", "says"), UNREADABLE)
def test_a_picture_that_cannot_be_read_is_named(seer, added, parts, param, says):
    answer = seer.refused("/chat/completions", messages=user(*parts))
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param and says in answer.json()["error"]["message"]
    assert not added and len(answer.json()["error"]["message"]) < 300


def test_a_template_that_drops_a_picture_is_refused(seer, tmp_path, added):
    for template in ("", "qwen3_5", "qwen2_5"):
        with scripted_client(tmp_path / f"a{template}", template=template, sees=True) as blind:
            answer = blind.refused("/chat/completions", messages=user(part(A)))
            assert answer.status_code == 400 and "template" in answer.text
    thought = [{"type": "text", "text": "<think>x"}, part(A), {"type": "text", "text": "</think>"}]
    answer = seer.refused("/chat/completions", messages=[*HI, {"role": "assistant", "content": thought}, *HI])
    assert answer.status_code == 400 and "places for 0 of 1 pictures" in answer.text
    assert not added


def test_how_many_and_how_large_is_a_setting(tmp_path, seer, server):
    chat = ChatSettings(limit_mm_per_prompt='{"image": 0}')
    with scripted_client(tmp_path / "a", template="qwen3_vl", sees=True, chat=chat) as client:
        assert "too many: send 0" in client.refused("/chat/completions", messages=user(part(A))).text
    long = {"messages": [{"role": "user", "content": "x" * 5 * 2**20}]}
    assert seer.refused("/chat/completions", **long).status_code == 400
    assert server.refused("/chat/completions", **long).status_code == 413


def test_pictures_are_decoded_two_at_a_time_while_others_go_on(seer, monkeypatch):
    goes_on, begun, decoded = threading.Event(), threading.Semaphore(0), processing.decoded
    monkeypatch.setattr(
        processing, "decoded", lambda image: (begun.release(), goes_on.wait(), decoded(image))[2]
    )
    asked = [user(part(file_of(picture(64, 64, seed=seed)))) for seed in range(4)]
    with ThreadPoolExecutor(4) as pool:
        shown = [pool.submit(seer.refused, "/chat/completions", messages=each) for each in asked]
        try:
            begun.acquire()
            begun.acquire()
            assert seer.refused("/chat/completions", messages=HI).status_code == 200
            assert not begun.acquire(timeout=0.2)
        finally:
            goes_on.set()
        assert {each.result().status_code for each in shown} == {200}


def test_pictures_of_one_size_are_different_tokens_for_who_compares_prompts(seer, added):
    for data in (A, file_of(picture(320, 256, seed=1)), A):
        assert seer.refused("/chat/completions", messages=user(part(data))).status_code == 200
    one, other, again = (tokens_of(each, seer.pictures) for each in added)
    first = list(added[0].prompt).index(seer.pictures.token_id)
    assert num_common(one, other) == first and num_common(one, again) == len(one)
    assert (one < 0).sum() == 80


# Where pictures may come from


def test_a_local_file_is_below_its_folder(tmp_path):
    inside, outside = tmp_path / "in", tmp_path / "secret.png"
    (inside / "sub dir").mkdir(parents=True)
    for path in (outside, inside / "a.png", inside / "sub dir/a.png"):
        path.write_bytes(A)
    for name, target in (("link.png", outside), ("up", tmp_path), ("own.png", inside / "a.png")):
        (inside / name).symlink_to(target)
    for name in ("a.png", "sub%20dir/a.png", "own.png", "sub dir/../a.png"):
        assert local_file(f"file://{inside}/{name}", f"{inside}/") == A
    (inside / "large").write_bytes(bytes(MAX_BYTES + 9))
    assert len(local_file(f"file://{inside}/large", str(inside))) == MAX_BYTES + 1, "one more than is read"
    names = "link.png up/secret.png ../secret.png %2e%2e/secret.png none.png sub%20dir a%00.png".split()
    wrong = [f"file://{inside}/{name}" for name in names]
    for url in (*wrong, f"file://{outside}", f"file://host{inside}/a.png", f"file://{inside}secret.png"):
        with pytest.raises(UserError, match="is no file below"):
            local_file(url, str(inside))
    with pytest.raises(UserError, match="--allowed-local-media-path"):
        local_file(f"file://{inside}/a.png", "")


def answers(request):
    assert request.headers["accept-encoding"] == "identity" and "cookie" not in request.headers
    match request.url.path:
        case "/a.png":
            return httpx2.Response(200, content=iter([A[:100], A[100:]]))
        case "/moved":
            return httpx2.Response(302, headers={"location": "http://127.0.0.1/a.png"})
        case "/endless":
            return httpx2.Response(200, content=iter([bytes(MAX_BYTES), b"1"]))
        case "/broken":
            raise httpx2.ConnectError("refused")
    return httpx2.Response(404)


ADDRESSES = [
    ("http://img.example/a.png", ""),
    ("https://IMG.example:8443/a.png", ""),
    ("http://user:key@img.example/a.png", ""),
    ("http://img.example/moved", "HTTP 302"),
    ("http://img.example/none", "HTTP 404"),
    ("http://img.example/endless", "has more than 20 MiB"),
    ("http://img.example/broken", "was not sent .refused"),
    ("http://other.example/a.png", "is on other.example, not one of"),
    ("http://sub.img.example/a.png", "is on sub.img.example"),
    ("http://img.example.evil/a.png", "is on img.example.evil"),
    ("http://img.example@evil/a.png", "is on evil"),
    ("http://127.0.0.1/a.png", "is on 127.0.0.1"),
    ("http://[::1]/a.png", "is on ::1"),
    ("http:///a.png", "is on|was not sent"),
    ("http://img.example:port/a.png", "was not sent"),
]


@pytest.mark.parametrize(("url", "says"), ADDRESSES)
def test_an_address_is_of_a_host_that_is_allowed(url, says):
    transport = httpx2.MockTransport(answers)
    if says:
        with pytest.raises(UserError, match=says):
            fetched(url, ("img.example",), transport)
    else:
        assert fetched(url, ("Img.example",), transport) == A
    with pytest.raises(UserError, match="--allowed-media-domains"):
        fetched(url, (), transport)
