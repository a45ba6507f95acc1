"""Why a prompt was computed and how far it is: what client, log, page and metrics are told."""

import json
import logging
from unittest.mock import Mock, call

import numpy as np
import pytest
from starlette.testclient import TestClient
from tests.helpers.toy import ByteTokenizer

from tiny_llm_lab.serving.async_engine.messages import NewRequest
from tiny_llm_lab.serving.options.engine_settings import EngineSettings, ModelSettings
from tiny_llm_lab.serving.server.api import start_model
from tiny_llm_lab.serving.server.app import create_app
from tiny_llm_lab.serving.server.prompts import watch as watch_module
from tiny_llm_lab.serving.server.prompts.reuse import compare, num_moved
from tiny_llm_lab.serving.server.prompts.watch import PromptWatch
from tiny_llm_lab.serving.server.settings import ServerSettings
from tiny_llm_lab.types import Completion, EngineOutput, SamplingParams, Timing

RULES = " ".join(f"Rule {number} is about {number * number}." for number in range(60))


@pytest.fixture(scope="module")
def server(kernels_on):
    settings = ModelSettings(engine=EngineSettings(num_blocks=200))
    app = create_app(lambda: start_model(settings), ServerSettings(drain_s=0))
    with TestClient(app, "http://localhost") as client:
        yield client


def ask(server, system, *turns, key="a", path="/v1/chat/completions", **more):
    """An answer."""
    roles = ("user", "assistant")
    messages = [{"role": roles[i % 2], "content": text} for i, text in enumerate(turns)]
    body = {"messages": [{"role": "system", "content": system}, *messages]} if "chat" in path else {}
    body |= {"max_tokens": 3, **more}
    headers = {"Authorization": f"Bearer {key}", "User-Agent": "tool/1.0 (x)"}
    return server.post(path, json=body, headers=headers)


def told(answer):
    return answer.json()["usage"]["prompt_tokens_details"].get("prefix_cache", {})


def row(*parts):
    return np.concatenate([np.arange(start, start + size, dtype=np.int32) for start, size in parts])


REASONS = [
    ([], [(0, 100)], 0, "new", 0),
    ([], [(0, 100)], 32, "continued", 0),  # of a server before this one
    ([(0, 100)], [(500, 90)], 0, "new", 0),
    ([(0, 100)], [(0, 100), (500, 90)], 96, "continued", 0),
    ([(0, 100)], [(0, 100), (500, 90)], 32, "evicted", 64),
    ([(0, 100)], [(0, 50), (500, 90)], 48, "differs", 0),
    ([(0, 100)], [(0, 50), (500, 90)], 0, "evicted", 48),
    ([(0, 2000)], [(5000, 3), (3, 1997)], 0, "differs", 1984),
    ([(0, 2000)], [(0, 100), (5000, 3), (100, 1900)], 16, "differs", 1968),  # 80 of them were evicted
    ([(0, 2000)], [(0, 1900), (5000, 3), (1900, 100)], 16, "evicted", 1968),
    ([(0, 2000)], [(0, 20), (5000, 3), (20, 1980)], 16, "differs", 1968),
]


@pytest.mark.parametrize(("before", "now", "cached", "reason", "again"), REASONS)
def test_a_reason_follows_from_two_prompts(before, now, cached, reason, again):
    result = compare(row(*now), cached, row(*before, (0, 0)), 16, ByteTokenizer())
    assert result.reason == reason
    assert again - 16 <= result.num_again <= again + 16 and (again == 0) == (result.num_again == 0)
    assert result.says.startswith(f"reused {cached:,} of ")


def test_a_hybrid_tells_of_a_snapshot_and_not_of_memory():
    """Also behind the difference that cost more: both are told."""
    tail = (500, 90)
    for now, cached, reason in (
        ([(0, 100), tail], 32, "no_snapshot"),
        ([(0, 50), tail], 0, "no_snapshot"),
        ([(0, 100), (5000, 3), (100, 1900)], 16, "differs"),
        ([(0, 2000), tail], 2000, "continued"),
    ):
        before = row((0, 100)) if now[-1] == tail and cached < 2000 else row((0, 2000))
        says = compare(row(*now), cached, before, 16, ByteTokenizer(), has_states=True)
        assert says.reason == reason
        assert ("snapshot" in says.says) == (reason != "continued") and "memory" not in says.says


def test_what_is_elsewhere_is_found_whatever_its_order():
    one, other, third = np.random.default_rng(1).integers(0, 150_000, (3, 3000)).astype(np.int32)
    assert num_moved(np.append(one, other), np.append(other, one)) > 5800
    assert num_moved(one, third) == 0
    assert 2500 < num_moved(one, np.append(third, one)) < 3500


def test_the_place_and_the_text_are_told_to_the_client_alone(server, caplog, monkeypatch):
    monkeypatch.setattr(watch_module, "_LOGGED", 64)
    with caplog.at_level(logging.DEBUG, "tiny_llm"):
        ask(server, f"You have 14982239 left. {RULES}", "Hi")
        system = told(ask(server, f"You have 14982240 left. {RULES}", "Hi"))
        ask(server, "Be kind.", "Hi", "Hello", "A secret word: plum. " + RULES[:900])
        turn = told(ask(server, "Be kind.", "Hi", "Hello", "A secret word: pear. " + RULES[:900]))
    assert "in the system prompt" in system["says"] and "982240 left" in system["says"]
    assert "in turn 4 (user)" in turn["says"] and "pear" in turn["says"] and "plum" not in turn["says"]
    assert "in turn 4 (user)" in caplog.text and "pear" not in caplog.text and "982240" not in caplog.text
    recorded = json.dumps(server.app.state.served.live.recorder.since(0)[0])
    assert "in turn 4 (user)" in recorded and "pear" not in recorded
    page = server.get("/metrics").text
    assert 'tiny_llm:client_prompt_tokens_computed_again_total{client="tool"' in page


def test_prompts_of_other_keys_and_salts_are_not_compared(server):
    for subject, key, salt in (("cats", "b", "s"), ("dogs", "c", "s"), ("mice", "b", "t")):
        reuse = told(ask(server, f"Of {subject}. {RULES}", "Hi", key=key, cache_salt=salt))
        assert reuse.get("reason", "continued") != "differs", (key, salt)
    assert told(ask(server, f"Of everyone. {RULES}", "Hi", key="b", cache_salt="s"))["reason"] == "differs"


def test_blocks_that_were_needed_are_told(server):
    ask(server, f"Once. {RULES}", "Hi", key="d")
    for number in range(4):
        ask(server, f"{number} {RULES}", "Hi", key="e")
    assert told(ask(server, f"Once. {RULES}", "Hi", key="d"))["reason"] == "evicted"
    for number in (1, 2, 3):  # a reason is that of one prompt
        many = {"prompt": [f"{number}{i} {RULES}" for i in range(number)]}
        assert bool(told(ask(server, "", path="/v1/completions", **many))) == (number == 1)


def test_a_stream_says_how_far_its_prompt_is(server):
    options = {"stream": True, "return_progress": True}
    for path, body in (("/v1/chat/completions", {}), ("/v1/completions", {"prompt": [RULES, "Hi"]})):
        lines = ask(server, f"Far. {RULES}", "Hi", path=path, **options, **body).text.split("\n\n")
        chunks = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
        seen = [each["prompt_progress"] for each in chunks if "prompt_progress" in each]
        assert {"total", "cache", "processed", "time_ms"} == set(seen[-1])
        assert seen[-1]["processed"] == seen[-1]["total"] > 0 and seen[-1]["time_ms"] >= 0
        assert all(each["choices"][0]["index"] < 2 for each in chunks)
    assert "prompt_progress" not in ask(server, f"Far. {RULES}", "Hi", stream=True).text


def test_what_is_remembered_is_bounded_and_a_turn_replaces_the_one_before(monkeypatch):
    monkeypatch.setattr(watch_module, "_MOST_TOKENS", 1000)
    monkeypatch.setattr(watch_module, "_COUNTED", 64)
    watch, held = PromptWatch(), []
    watch._size = 16

    def turn(name, tokens):
        request = NewRequest(name, tokens, SamplingParams())
        held.append(watch.expect(request, {}, ByteTokenizer()))
        done = Completion(0, len(tokens), (7, 8), "", "stop", Timing(0.0))
        watch.produced([EngineOutput(name, (7, 8), "", done)])
        return [*tokens, 7, 8, 9]

    tokens = [97] * 100
    for number in range(5):
        tokens = turn(f"{number}", tokens)
    assert [len(each) for _, each in watch._before.values()] == [114], "one conversation"
    for number in range(50):
        turn(f"other-{number}", [number] * 90)
        assert sum(len(each) for _, each in watch._before.values()) <= 1000


@pytest.mark.parametrize("cached", [0, 48])
@pytest.mark.parametrize("computed", [0, 1, 63, 64, 1023, 1024])
def test_who_is_told_of_how_many_computed_tokens(computed, cached, caplog):
    watch, request = PromptWatch(explain := Mock()), NewRequest("a", [97] * (computed + cached))
    prompt = watch.expect(request, {"user-agent": "tool/1"}, ByteTokenizer())
    with caplog.at_level(logging.INFO, "tiny_llm"):
        for _ in range(2):  # its first tokens come once
            watch.produced([EngineOutput("a", (7,), "a", num_cached_tokens=cached)])
    assert explain.mock_calls == [call("a", "tool", prompt.reuse)] * (computed >= 64)
    assert (len(caplog.messages), prompt.reuse is None) == (computed >= 1024, computed < 64)


def test_what_was_computed_for_a_client_that_left_is_remembered():
    watch, tokens = PromptWatch(), [97] * 1000
    left, other = (watch.expect(NewRequest(n, tokens, SamplingParams()), {}, ByteTokenizer()) for n in "ab")
    left.num_done = 600
    for each in (left, other):
        each.close()
    again = watch.expect(NewRequest("c", tokens, SamplingParams()), {}, ByteTokenizer())
    assert len(again.before) == 600 and len(watch._before) == 1


def test_seconds_left_count_those_before():
    watch = PromptWatch()
    first, second = (watch.expect(NewRequest(name, [97] * 1000), {}, ByteTokenizer()) for name in "ab")
    watch._steps.extend([(100, 5000, 1.0)] * 8)
    first.num_done = 500
    lefts = [each.progress()["seconds_left"] for each in (first, second)]
    assert 0 < lefts[0] < lefts[1] and "left" in str(second)
    first.is_read = True
    assert second.progress()["seconds_left"] < lefts[1]
