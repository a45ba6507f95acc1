"""Prompts that begin alike go to one replica, whose application answers as it does behind a socket."""

import asyncio
import json
from collections import Counter
from contextlib import aclosing

import pytest
from tests.helpers.echo_app import EchoApp

from tiny_llm_lab.cli import dispatch as cli
from tiny_llm_lab.serving.ray_cluster.asgi_call import HttpRequest, ResponseHead, call_app
from tiny_llm_lab.serving.ray_cluster.command import ReplicaSettings
from tiny_llm_lab.serving.ray_cluster.replica_choice import Overload, prefix_key, rank_replicas
from tiny_llm_lab.types import UserError


def asked(method, path, body=b""):
    return HttpRequest(method, path, b"", ((b"content-type", b"application/json"),), body)


def test_an_answer_is_its_head_and_its_body():
    async def run():
        request = asked("POST", "/v1/completions", json.dumps({"prompt": "hello"}).encode())
        return [piece async for piece in call_app(EchoApp(), request)]

    head, *body = asyncio.run(run())
    assert isinstance(head, ResponseHead) and head.status == 200
    assert (b"content-type", b"application/json") in head.headers
    assert [json.loads(piece) for piece in body if isinstance(piece, bytes)] == [
        {"id": "cmpl-1", "text": "hello"}
    ]


def test_a_stream_comes_while_it_is_made():
    async def run():
        app = EchoApp(0.001)
        async with aclosing(call_app(app, asked("GET", "/stream"))) as pieces:
            await anext(pieces)
            assert bytes(await anext(pieces)).startswith(b"0 ")
            assert app.num_cancelled == 0
        return app.num_cancelled

    assert asyncio.run(run()) == 1, "left early, the application is told before the call has ended"


def test_a_reader_that_is_slow_gets_the_whole_text():
    async def run():
        text = b""
        async for piece in call_app(EchoApp(), asked("GET", "/stream")):
            if isinstance(piece, bytes):
                text += piece
                await asyncio.sleep(0.01)
        return text

    assert asyncio.run(run()) == b"".join(b"%d " % number for number in range(1000))


def test_an_error_of_the_application_is_raised():
    async def run():
        async for _ in call_app(EchoApp(), asked("POST", "/v1/completions", b"{}")):
            pass

    with pytest.raises(KeyError):
        asyncio.run(run())


BAD_FLAGS = [["--shutdown"], ["--num-replicas", "0"], ["--max-num-seqs", "8", "--model", "nope"]]


@pytest.mark.parametrize("argv", BAD_FLAGS)
def test_bad_flags_are_one_line(argv, capfd):
    assert cli.main(["cluster", *argv]) == 2
    assert len(capfd.readouterr().err.splitlines()) == 1


IDLE = dict.fromkeys("abcd", 0)


def key(**body):
    return prefix_key(json.dumps(body).encode(), 20)


def test_a_key_is_the_beginning_of_the_prompt():
    assert key(prompt="x" * 30, max_tokens=1) == key(prompt="x" * 25, max_tokens=2) == "x" * 20
    assert key(prompt=[1, 2, 3]) == key(prompt=[1, 2, 3]) != key(prompt=[12, 3])
    assert key(prompt=["one", "two"]) == "one\ntwo"


def test_messages_count_with_their_roles():
    system = {"role": "system", "content": "be brief, please"}
    questions = [{"role": "user", "content": each} for each in ("why?", "when?")]
    assert key(messages=[system, questions[0]]) == key(messages=[system, questions[1]])
    assert key(messages=[system]) != key(messages=[system | {"role": "user"}])
    parts = {"role": "system", "content": [{"type": "text", "text": "be brief, please"}]}
    assert key(messages=[parts]) is not None


NO_PROMPTS = [b"", b"no json", b"[" * 100_000, b"[1]", b"{}", b'{"prompt": null}', b'{"prompt": {"a": 1.5}}']


@pytest.mark.parametrize("body", NO_PROMPTS)
def test_what_has_no_prompt_has_no_key(body):
    assert prefix_key(body) is None


def test_a_long_prompt_costs_no_more_than_its_beginning():
    deep = "x"
    for _ in range(100):
        deep = [deep]
    assert key(prompt=[deep] * 1000) == "\n".join("x" * 20)


def test_every_router_prefers_the_same_replica_and_keys_are_spread():
    chosen = Counter(rank_replicas(f"prompt {i}", IDLE)[0] for i in range(400))
    assert set(chosen) == set(IDLE) and max(chosen.values()) < 2 * min(chosen.values())
    assert rank_replicas("prompt", IDLE) == rank_replicas("prompt", dict(reversed(IDLE.items())))


def test_a_replica_that_goes_moves_only_its_own_keys():
    left = {name: 0 for name in IDLE if name != "c"}
    for number in range(100):
        before, after = (rank_replicas(f"prompt {number}", lens) for lens in (IDLE, left))
        assert after == [name for name in before if name != "c"]


def test_an_overloaded_replica_comes_last():
    first, second, *_ = rank_replicas("prompt", IDLE)
    assert rank_replicas("prompt", IDLE | {first: 4})[0] == first, "a few more are worth the cache"
    assert rank_replicas("prompt", IDLE | {first: 40})[0] == second
    assert rank_replicas("prompt", IDLE | {first: 40})[-1] == first
    busy = dict.fromkeys(IDLE, 4)
    assert rank_replicas("prompt", busy | {first: 10})[0] == first, "overload is told from the mean"
    assert rank_replicas("prompt", IDLE | {first: 3}, Overload(1.0, 1))[0] == second


def test_without_a_key_the_shortest_queue_is_first():
    assert rank_replicas(None, {"a": 3, "b": 1, "c": 2}) == ["b", "c", "a"]


BAD_REPLICAS = [{"min_replicas": 1}, {"max_replicas": 2}, {"min_replicas": 3, "max_replicas": 2}]


@pytest.mark.parametrize("given", BAD_REPLICAS)
def test_replica_limits_that_make_no_sense_are_refused(given):
    with pytest.raises(UserError, match="--min-replicas"):
        ReplicaSettings(**given)


def test_autoscaling_takes_the_place_of_a_number():
    fixed = ReplicaSettings(num_replicas=3).deployment_options()
    assert fixed["num_replicas"] == 3 and "autoscaling_config" not in fixed
    scaled = ReplicaSettings(min_replicas=1, max_replicas=4, max_num_seqs=10).deployment_options()
    assert "num_replicas" not in scaled and scaled["max_ongoing_requests"] == 20
    assert scaled["autoscaling_config"]["target_ongoing_requests"] == 5
    assert ReplicaSettings(num_replicas=3, max_num_seqs=10).max_running == 3 * 20
    assert ReplicaSettings(min_replicas=1, max_replicas=4, max_num_seqs=10).max_running == 4 * 20
