"""Pictures in all three APIs: where they are in the prompt, what is refused, and from where they may come."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx2
import numpy as np
import pytest
from tests.helpers.picture_files import data_url, file_of, picture
from tests.helpers.scripted_client import FLAT, HI, TOOL, scripted_client

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
CALL = {"id": "1", "type": "function", "function": {"name": "get", "arguments": "{}"}}
TYPED = "Is <|image_pad|> here?"


def chat_part(data, **more):
    return {"type": "image_url", "image_url": {"url": data_url(data), **more}}


def block(data):
    return {
        "type": "image",
        "source": {"type": "base64", "media_type": "image/png", "data": data_url(data)[22:]},
    }


def item(data, **more):
    return {"type": "input_image", "image_url": data_url(data), **more}


# In each: a question with A and C of low detail between words, and a tool that returns B.
CHAT = {
    "messages": [
        {
            "role": "user",
            "content": [chat_part(A), {"type": "text", "text": TYPED}, chat_part(C, detail="low")],
        },
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "1", "content": [{"type": "text", "text": "seen"}, chat_part(B)]},
    ],
    "tools": [TOOL],
}
RESPONSE = {
    "input": [
        {"role": "user", "content": [item(A), {"type": "input_text", "text": TYPED}, item(C, detail="low")]},
        {"type": "function_call", "name": "get", "arguments": "{}", "call_id": "1"},
        {
            "type": "function_call_output",
            "call_id": "1",
            "output": [{"type": "input_text", "text": "seen"}, item(B)],
        },
    ],
    "tools": [FLAT],
}
MESSAGE = {
    "messages": [
        {"role": "user", "content": [block(A), {"type": "text", "text": TYPED}, chat_part(C, detail="low")]},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "get", "input": {}}]},
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "1",
                    "content": [{"type": "text", "text": "seen"}, block(B)],
                }
            ],
        },
    ],
    "max_tokens": 8,
    "tools": [{"name": "get", "input_schema": {"type": "object", "properties": {}}}],
}


@pytest.fixture(scope="module")
def seer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sees") / "qwen"
    with scripted_client(folder, template="qwen3_vl", sees=True) as client:
        yield client


@pytest.fixture
def added(monkeypatch):
    """The requests that engines get."""
    requests, add = [], AsyncEngine.add

    def keep(self, new, *others):
        requests.extend(new)
        return add(self, new, *others)

    monkeypatch.setattr(AsyncEngine, "add", keep)
    return requests


def usage_of(answer):
    usage = answer["usage"]
    details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details") or usage
    kinds = [usage.get(f"{kind}input_tokens", 0) for kind in ("", "cache_read_", "cache_creation_")]
    return usage.get("prompt_tokens") or sum(kinds), details["image_tokens"]


@pytest.mark.parametrize(
    ("path", "body"), [("/chat/completions", CHAT), ("/responses", RESPONSE), ("/messages", MESSAGE)]
)
def test_a_picture_has_its_tokens_where_the_message_has_it(seer, added, path, body):
    answer = seer.refused(path, **body)
    assert answer.status_code == 200, answer.text
    (request,) = added
    processor = PictureProcessor(seer.folder, seer.pictures)
    expected = [processor.read(*each) for each in ((A, 2048), (C, 256), (B, 2048))]
    assert [each.digest for each in request.pictures] == [each.digest for each in expected]
    counts = [each.num_tokens(seer.pictures) for each in expected]
    assert counts == [80, 252, 81]
    start, pad, end = (f"<|{name}|>" for name in ("vision_start", "image_pad", "vision_end"))
    first, low, returned = (f"{start}{pad * count}{end}" for count in counts)
    says = seer.prompt()
    assert f"user\n{first}{TYPED}{low}<|im_end|>" in says
    assert f"<tool_response>\nseen{returned}\n</tool_response>" in says
    assert request.prompt.count(seer.ids[pad]) == sum(counts), "what was typed is text"
    assert usage_of(answer.json()) == (len(request.prompt), sum(counts))


def test_pictures_are_counted_as_they_are_used(seer, added):
    count = seer.refused("/messages/count_tokens", **{**MESSAGE, "max_tokens": 1}).json()["input_tokens"]
    seer.refused("/messages", **MESSAGE)
    tokens = seer.root("/tokenize", **CHAT).json()["tokens"]
    seer.refused("/chat/completions", **CHAT, n=2)
    one, first, second = added
    assert count == len(one.prompt)
    assert tokens == first.prompt == second.prompt and len(first.pictures) == len(second.pictures) == 3


def user(*parts):
    return [{"role": "user", "content": [{"type": "text", "text": "x"}, *parts]}]


PART = "messages[0].content[1]"


@pytest.mark.parametrize(
    ("parts", "param", "says"),
    [
        ([{"type": "image_url"}], PART, "no picture"),
        ([{"type": "image_url", "image_url": 5}], PART, "not at a known address"),
        ([{"type": "image_url", "image_url": {"url": "ftp://a/b.png"}}], PART, "not at a known address"),
        ([chat_part(A, detail="huge")], PART, "detail must be one of"),
        ([{"type": "input_audio"}], PART, "is 'input_audio': send text or a picture"),
        ([{"type": "input_image", "file_id": "file-1"}], f"{PART}.file_id", "keeps no files"),
        ([{"type": "image", "source": {"type": "file", "file_id": "1"}}], PART, "no picture"),
        ([chat_part(A), chat_part(A[:100])], "messages[0].content[2]", "is damaged"),
        ([chat_part(b"<svg/>")], PART, "is no PNG"),
        ([{"type": "image_url", "image_url": {"url": "http://a.example/b.png"}}], PART, "on the network"),
        ([{"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}], PART, "is a local path"),
        ([{"type": "image", "image": "/etc/passwd"}], PART, "not at a known address"),
        ([chat_part(A)] * 17, "messages[0].content[17]", "one picture too many"),
        ([chat_part(C)] * 3, "messages", "maximum context length"),
        # Its head alone is too long for the rest of the context, so its damaged body is never decoded.
        ([chat_part(C), chat_part(C), chat_part(C[:5000])], "messages", "at least 4201 tokens"),
    ],
)
def test_a_picture_that_cannot_be_read_is_named(seer, added, parts, param, says):
    answer = seer.refused("/chat/completions", messages=user(*parts))
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param and says in answer.json()["error"]["message"]
    assert not added and len(answer.json()["error"]["message"]) < 300


def test_a_template_that_drops_a_picture_is_refused(seer, tmp_path, added):
    thought = f"<think>{'x'}</think>"
    for template in ("", "qwen3_5", "qwen2_5"):
        with scripted_client(tmp_path / f"a{template}", template=template, sees=True) as blind:
            answer = blind.refused("/chat/completions", messages=user(chat_part(A)))
            assert answer.status_code == 400 and answer.json()["error"]["param"] in ("messages", None)
    within = [*HI, {"role": "assistant", "content": [{"type": "text", "text": thought[:8]}, chat_part(A)]}]
    within[1]["content"].append({"type": "text", "text": thought[8:]})
    answer = seer.refused("/chat/completions", messages=[*within, *HI])
    assert answer.status_code == 400 and "places for 0 of 1 pictures" in answer.text
    assert not added


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/chat/completions", {"messages": user(chat_part(A))}, PART),
        ("/responses", {"input": [{"role": "user", "content": [item(A)]}]}, "input[0].content[0]"),
        ("/messages", {"messages": user(block(A)), "max_tokens": 1}, PART),
    ],
)
def test_a_model_of_text_says_so(server, path, body, param):
    answer = server.refused(path, **body)
    assert answer.status_code == 400
    assert f"this model reads text only, and {param} is '" in answer.json()["error"]["message"]


def test_the_number_of_pictures_is_a_setting(tmp_path):
    chat = ChatSettings(limit_mm_per_prompt='{"image": 0}')
    with scripted_client(tmp_path / "a", template="qwen3_vl", sees=True, chat=chat) as client:
        assert "too many: send 0" in client.refused("/chat/completions", messages=user(chat_part(A))).text


def test_a_model_that_sees_takes_larger_bodies(seer, server):
    long = {"messages": [{"role": "user", "content": "x" * 5 * 2**20}]}
    assert seer.refused("/chat/completions", **long).status_code == 400
    assert server.refused("/chat/completions", **long).status_code == 413


def test_pictures_are_decoded_two_at_a_time_while_others_go_on(seer, monkeypatch):
    goes_on, begun, read = threading.Event(), threading.Semaphore(0), PictureProcessor.read

    def waiting(*args):
        begun.release()
        goes_on.wait()
        return read(*args)

    monkeypatch.setattr(PictureProcessor, "read", waiting)
    with ThreadPoolExecutor(4) as pool:
        shown = [
            pool.submit(seer.refused, "/chat/completions", messages=user(chat_part(A))) for _ in range(4)
        ]
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
        assert seer.refused("/chat/completions", messages=user(chat_part(data))).status_code == 200
    one, other, again = (tokens_of(each, seer.pictures) for each in added)
    first = list(added[0].prompt).index(seer.pictures.token_id)
    assert num_common(one, other) == first and num_common(one, again) == len(one)
    assert (one[first : first + 80] < 0).all() and (np.delete(one, range(first, first + 80)) >= 0).all()


# Where pictures may come from


def test_a_local_file_is_below_its_folder(tmp_path):
    inside, outside = tmp_path / "in", tmp_path / "secret.png"
    (inside / "sub dir").mkdir(parents=True)
    outside.write_bytes(A)
    for name in ("a.png", "sub dir/a.png"):
        (inside / name).write_bytes(A)
    (inside / "link.png").symlink_to(outside)
    (inside / "up").symlink_to(tmp_path)
    (inside / "own.png").symlink_to(inside / "a.png")
    for name in ("a.png", "sub%20dir/a.png", "own.png", "sub dir/../a.png"):
        assert local_file(f"file://{inside}/{name}", str(inside)) == A
    assert local_file(f"file://localhost{inside}/a.png", f"{inside}/") == A
    places = [
        "link.png",
        "up/secret.png",
        "../secret.png",
        "%2e%2e/secret.png",
        "none.png",
        "sub%20dir",
        "a%00.png",
    ]
    addresses = [f"file://{inside}/{name}" for name in places]
    for url in (*addresses, f"file://{outside}", f"file://host{inside}/a.png", f"file://{inside}secret.png"):
        with pytest.raises(UserError, match="is no file below"):
            local_file(url, str(inside))
    with pytest.raises(UserError, match="--allowed-local-media-path"):
        local_file(f"file://{inside}/a.png", "")


async def sent(data):
    for start in range(0, len(data), 2**20):
        yield data[start : start + 2**20]


def answers(request):
    match request.url.path:
        case "/a.png":
            assert request.headers["accept-encoding"] == "identity" and "cookie" not in request.headers
            return httpx2.Response(200, content=sent(A), headers={"set-cookie": "a=b"})
        case "/moved":
            return httpx2.Response(302, headers={"location": "http://127.0.0.1/a.png"})
        case "/endless":
            return httpx2.Response(200, content=sent(bytes(MAX_BYTES + 1)))
        case "/broken":
            raise httpx2.ConnectError("refused")
    return httpx2.Response(404)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("http://img.example/a.png", ""),
        ("https://IMG.example:8443/a.png", ""),
        ("http://user:key@img.example/a.png", ""),
        ("http://img.example/moved", "HTTP 302"),
        ("http://img.example/none", "HTTP 404"),
        ("http://img.example/endless", "has more than 20 MiB"),
        ("http://img.example/broken", "was not sent .refused"),
        ("http://other.example/a.png", "is on other.example, which is not one of"),
        ("http://sub.img.example/a.png", "is on sub.img.example"),
        ("http://img.example.evil/a.png", "is on img.example.evil"),
        ("http://img.example@evil/a.png", "is on evil"),
        ("http://evil\\@img.example/a.png", ""),
        ("http://127.0.0.1/a.png", "is on 127.0.0.1"),
        ("http://[::1]/a.png", "is on ::1"),
        ("http:///a.png", "is (on|at)"),
        ("http://img.example:port/a.png", "is at no valid address"),
    ],
)
def test_an_address_is_of_a_host_that_is_allowed(url, says):
    def fetch(hosts):
        return asyncio.run(fetched(url, hosts, httpx2.MockTransport(answers)))

    if says:
        with pytest.raises(UserError, match=says):
            fetch(("img.example",))
    else:
        assert fetch(("Img.example",)) == A == fetch(("img.example",))
    with pytest.raises(UserError, match="--allowed-media-domains"):
        fetch(())
