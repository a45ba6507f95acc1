"""What no route sees: requests without the key, of other sites, of another type; and HEAD, which is GET."""

import asyncio

import httpx2
import pytest
from starlette.responses import PlainTextResponse
from starlette.testclient import TestClient
from tests.helpers.fake_engine import fake_server
from tests.helpers.virtual_loop import run_virtual

from tiny_llm_lab.serving.server.guard import Guard
from tiny_llm_lab.serving.server.settings import ServerSettings


@pytest.fixture(scope="module")
def server():
    with fake_server(settings=ServerSettings(drain_s=0, allowed_origins=("http://page.example",))) as server:
        yield server


HERE, KEY, ALL = ServerSettings(), ServerSettings(api_key=("k",)), ServerSettings(allowed_hosts=("*",))
NAMED = ServerSettings(allowed_hosts=("Proxy",), allowed_origins=("app://x",))
OWN = ("localhost:1", "LOCALHOST", "127.0.0.1:8000", "[::1]:9", "")


PAGES = [
    *((HERE, host, None, True) for host in OWN),
    *((HERE, host, None, False) for host in ("evil.example", "localhost.evil.example:80", "[::2]")),
    (ServerSettings(host="127.0.0.7"), "127.0.0.7:1", "http://127.0.0.7:2", True),
    *((HERE, "localhost", origin, False) for origin in ("http://x", "null", "http://x#://localhost")),
    (ServerSettings(host="0.0.0.0"), "proxy", "http://x", True),
    *((KEY, "proxy", "http://x", True), (ALL, "proxy", "http://x", True)),
    *((NAMED, "proxy:80", origin, True) for origin in (None, "http://proxy", "app://x")),
    (NAMED, "proxy", "http://x", False),
    *((ServerSettings(allowed_origins=("*",)), "localhost", origin, True) for origin in ("http://x", "null")),
    (ServerSettings(allowed_origins=("*",)), "evil.example", None, False),
]


@pytest.mark.parametrize(("settings", "host", "origin", "is_taken"), PAGES)
def test_pages_elsewhere_reach_no_server_of_this_machine(settings, host, origin, is_taken):
    app = TestClient(Guard(PlainTextResponse("got it"), settings), "http://localhost")
    headers = {"Host": host, "Authorization": "Bearer k"} | ({"Origin": origin} if origin else {})
    answer = app.post("/", headers=headers)
    assert answer.status_code == (200 if is_taken else 403)
    assert is_taken or "start the server with --allowed-" in answer.text
    assert app.get("/", headers=headers).status_code == (200 if is_taken or origin else 403)


SILENT = [
    ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Dest": "image"}, False),
    ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Dest": "iframe"}, False),
    ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Dest": "empty", "Origin": "http://x"}, False),
    ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Dest": "empty", "Origin": "app://x"}, True),
    ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Dest": "document"}, True),
    ({"Sec-Fetch-Site": "same-origin", "Sec-Fetch-Dest": "empty"}, True),
    ({"Sec-Fetch-Site": "none", "Sec-Fetch-Dest": "document"}, True),
]


@pytest.mark.parametrize(("headers", "is_taken"), SILENT)
def test_pages_elsewhere_read_nothing_in_silence(headers, is_taken):
    app = TestClient(Guard(PlainTextResponse("got it"), NAMED), "http://localhost")
    answer = app.get("/", headers=headers)
    assert answer.status_code == (200 if is_taken else 403)
    assert is_taken or "start the server with --allowed-origins" in answer.text


def test_head_is_get_without_a_body(server):
    described = server.get("/openapi.json").json()["paths"].items()
    paths = [path.replace("{name}", "fake") for path, methods in described if "get" in methods]
    paths += ["/", "/docs", "/openapi.json", "/page/page.js", "/nope", "/tokenize"]
    assert len(paths) > 10
    with httpx2.Client(base_url=server.url, timeout=60) as client:
        for path in paths:
            answer = client.head(path)
            assert answer.content == b""
            with client.stream("GET", path) as whole:
                assert answer.status_code == whole.status_code
                assert answer.headers["content-type"] == whole.headers["content-type"]


def test_only_allowed_pages_may_send_requests(server):
    assert server.get("/health", Origin="http://page.example").headers["access-control-allow-origin"]
    assert "access-control-allow-origin" not in server.get("/health", Origin="http://x").headers


def test_the_key():
    with fake_server(settings=ServerSettings(drain_s=0, api_key=("secret", "other"))) as server:
        for given in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic secret"}):
            answer = server.get("/v1/models", **given)
            assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")
        for key in ("secret", "other"):
            assert server.get("/v1/models", Authorization=f"Bearer {key}").status_code == 200
            assert server.get("/v1/models", **{"x-api-key": key}).status_code == 200
        assert server.get("/v1/models", **{"x-api-key": "wrong"}).status_code == 401
        refused = server.post("/v1/messages", **{})
        assert (refused.status_code, refused.json()["error"]["type"]) == (401, "authentication_error")
        bearer = {"Authorization": "Bearer secret"}
        for path in ("/health", "/ping", "/version", "/", "/docs", "/openapi.json", "/page/main.js"):
            assert server.get(path).status_code == 200
        for path in ("/metrics", "/nope", "/page", "/%6detrics", "//metrics", "/page/../metrics"):
            assert server.get(path).status_code == 401
        assert server.get("/metrics", **bearer).status_code == 200
        for post in ("/tokenize", "/live/config", "/health"):
            assert server.post(post, prompt="x").status_code == 401
        assert server.get("/live/events").status_code == 401


async def taken_at(sizes):
    """When the routes get bodies of these sizes, which arrive together; the smallest first at equal times."""
    taken: list[tuple[int, float]] = []

    async def route(scope, receive, send):
        taken.append((len((await receive())["body"]), round(asyncio.get_running_loop().time(), 6)))

    async def ask(size):
        async def receive():
            return {"type": "http.request", "body": b"{" * size}

        headers = [(b"content-type", b"application/json"), (b"host", b"localhost")]
        await guard({"type": "http", "method": "POST", "path": "/", "headers": headers}, receive, None)

    guard = Guard(route, ServerSettings())
    await asyncio.gather(*map(ask, sizes))
    return sorted(taken, key=lambda each: each[::-1])


def test_large_bodies_leave_time_for_streams():
    large = 2**16 + 1
    times = [0.0, round(large / 10e6, 6), round((large + 400_000) / 10e6, 6)]
    want = [(5, 0.0), (2**16, 0.0), (large, times[0]), (400_000, times[1]), (large, times[2])]
    assert run_virtual(taken_at([large, 400_000, large, 5, 2**16])) == want
