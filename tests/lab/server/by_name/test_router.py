"""Models that are loaded and unloaded while requests come: each is answered by its own, or told why not."""

import asyncio
import gc
import random
import weakref
from argparse import ArgumentParser
from collections import Counter

import httpx2
import pytest
from tests.helpers.fake_clock import FakeClock
from tests.helpers.fake_engine import FakeEngine, start_fake

from tiny_llm_lab.runtime.memory import NotEnoughMemoryError
from tiny_llm_lab.serving.server import command
from tiny_llm_lab.serving.server.app import create_app
from tiny_llm_lab.serving.server.by_name.router import ModelRouter, NamedModel
from tiny_llm_lab.serving.server.settings import RequestLimits, ServerSettings
from tiny_llm_lab.types import UserError


class Machine:
    """Models "a", "b" and "c" on a machine with room for `room` of them."""

    def __init__(self, room=3, keep_alive_s=0.0, idle_unload_s=0.0, names="abc"):
        self.clock, self.room = FakeClock(), room
        self.loads = Counter()
        self.gates = {}  # what a model's loading waits for
        self.failures = {}
        loading = asyncio.Lock()
        self.models = {name: NamedModel(name, self._app(name), loading, self.clock) for name in names}
        self.router = ModelRouter([*self.models.values()], keep_alive_s, idle_unload_s)
        transport = httpx2.ASGITransport(self.router)
        self.http = httpx2.AsyncClient(transport=transport, base_url="http://localhost", timeout=60)

    def _app(self, name):
        async def start():
            if name in self.gates:
                await self.gates[name].wait()
            await asyncio.sleep(0)
            if name in self.failures:
                raise self.failures[name]
            if self.num_loaded >= self.room:
                raise NotEnoughMemoryError("its weights need 9 GiB and 1 GiB are free")
            self.loads[name] += 1
            return await start_fake(FakeEngine(), names=(name,))

        return create_app(start, ServerSettings(drain_s=0), is_guarded=False)

    @property
    def num_loaded(self):
        return sum(each.state == "loaded" for each in self.models.values())

    async def ask(self, name, **fields):
        body = {"model": name, "prompt": "x", "max_tokens": 2, **fields}
        return await self.http.post("/v1/completions", json=body)

    async def states(self):
        return (await self.http.get("/health")).json()["models"]


def on_machine(scenario, **settings):
    async def run():
        machine = Machine(**settings)
        async with asyncio.timeout(60):
            await scenario(machine)
            await machine.router.stop(0)
        assert machine.num_loaded == 0

    # A model that goes collects garbage, which takes half a second after thousands of tests.
    gc.freeze()
    try:
        asyncio.run(run())
    finally:
        gc.unfreeze()


@pytest.mark.parametrize("seed", range(3))
def test_models_take_turns_in_memory_that_is_too_small_for_all(seed):
    draw = random.Random(seed)

    async def scenario(machine):
        async def client():
            for _ in range(40):
                name, is_stream = draw.choice("abc"), draw.random() < 0.5
                while (answer := await machine.ask(name, stream=is_stream)).status_code == 503:
                    assert answer.json()["error"]["code"] == "model_not_loaded"
                    assert answer.headers["retry-after"] == "10"
                    await asyncio.sleep(0.001)
                assert answer.status_code == 200 and f'"model":"{name}"' in answer.text.replace(": ", ":")
                assert machine.num_loaded <= machine.room
                await asyncio.sleep(draw.choice([0, 0, 0.002]))

        await asyncio.gather(*(client() for _ in range(3)))
        assert set(machine.loads) == set("abc"), "more than there is room for: some have been unloaded"

    on_machine(scenario, room=1 + seed % 2)


def test_many_first_requests_load_a_model_once_and_one_that_leaves_stops_nobody():
    async def scenario(machine):
        await machine.ask("a")
        gate = machine.gates["b"] = asyncio.Event()
        asked = [asyncio.create_task(machine.ask("b")) for _ in range(5)]
        while await machine.states() != {"a": "loaded", "b": "loading", "c": "unloaded"}:
            await asyncio.sleep(0)
        assert (await machine.ask("a")).status_code == 200, "others are served meanwhile"
        asked[0].cancel()
        gate.set()
        answers = await asyncio.gather(*asked[1:])
        assert [each.status_code for each in answers] == [200] * 4
        assert machine.loads == {"a": 1, "b": 1}
        listed = (await machine.http.get("/v1/models")).json()["data"]
        assert listed[0]["max_model_len"] == 4096 and "max_model_len" not in listed[2]
        machine.models["a"].served.engine._is_silent = True
        assert (await machine.http.get("/health")).status_code == 503, "one of them hangs"

    on_machine(scenario)


@pytest.mark.parametrize("room", [1, 3, 5])
def test_requests_that_wait_for_one_model_make_room_for_it_once(room):
    async def scenario(machine):
        for name in "abcde"[:room]:
            assert (await machine.ask(name)).status_code == 200
            machine.clock.sleep(1)
        answers = await asyncio.gather(*(machine.ask("f") for _ in range(4)))
        assert [each.status_code for each in answers] == [200] * 4
        assert (machine.num_loaded, machine.loads["f"]) == (room, 1)
        assert machine.models["a"].state == "unloaded", "the one that was not used for the longest time"

    on_machine(scenario, room=room, names="abcdef")


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/messages"])
def test_a_stream_is_kept_alive_while_its_model_is_loaded(path):
    async def scenario(machine):
        gate = machine.gates["b"] = asyncio.Event()
        fields = {"model": "b", "max_tokens": 2, "stream": True, "prompt": "x"}
        fields["messages"] = [{"role": "user", "content": "x"}]
        torn = UserError("its config is torn: fetch it again")
        for failure in (torn, None) if path == "/v1/completions" else (torn,):
            gate.clear()
            machine.failures = {"b": failure} if failure else {}
            asked = asyncio.create_task(machine.http.post(path, json=fields))
            while (await machine.states())["b"] != "loading":
                await asyncio.sleep(0)
            await asyncio.sleep(0.03)
            gate.set()
            answer = await asked
            assert answer.status_code == 200 and answer.text.startswith(": ping\n\n")
            assert answer.headers["content-type"].startswith("text/event-stream")
            last = answer.text.strip().split("\n\n")[-1]
            assert (
                "cannot be loaded: its config is torn" if failure else "messages is not supported"
            ) in last
            assert last.startswith("event: error\ndata: {" if path == "/v1/messages" else "data: {")

    on_machine(scenario, keep_alive_s=0.005)


def test_what_cannot_be_loaded_is_told_and_the_others_go_on(caplog):
    async def scenario(machine):
        machine.failures["b"] = UserError("unknown model 'nonsense': choose one of default")
        told = (await machine.ask("b")).json()["error"]
        assert told["message"].startswith("the model 'b' cannot be loaded: unknown model 'nonsense'")
        machine.failures["c"] = KeyError("a fault of ours")
        answer = await machine.ask("c")
        told = answer.json()["error"]
        assert told["message"] == "the model 'c' cannot be loaded: the server's log says why"
        kind = (answer.status_code, told["type"], told["param"], told["code"], answer.headers["retry-after"])
        assert kind == (503, "server_error", "model", "model_not_loaded", "10")
        known, unknown = (each for each in caplog.records if "cannot be loaded" in each.getMessage())
        assert known.exc_info is None and unknown.exc_info[0] is KeyError
        assert (await machine.ask("d")).json()["error"]["code"] == "model_not_found"
        assert (await machine.ask("a")).status_code == (await machine.ask(None)).status_code == 200
        assert machine.loads == {"a": 1}

    on_machine(scenario)


def test_reading_loads_nothing():
    async def scenario(machine):
        for path, status in (("/", 200), ("/docs", 200), ("/metrics", 200), ("/live/events", 503)):
            assert (await machine.http.get(path)).status_code == status, path
        for one, paths in (("a", ()), ("c", ("/live", "/live/events")), ("b", ("/live",))):
            if paths:
                await machine.ask(one)
            states = {name: machine.models[name].state for name in "abc"}
            for path in ("/", "/docs", "/openapi.json", *paths):
                assert machine.router._read(path) is machine.models[one].app, "what is loaded, in their order"
            for path in ("/health", "/ping"):
                assert (await machine.http.get(path)).json() == {"status": "ok", "models": states}
            for path in ("/models", "/v1/models"):
                cards = (await machine.http.get(path)).json()
                assert [each["id"] for each in cards["data"]] == [*"abc"] and cards["object"] == "list"
                found = [(await machine.http.get(f"{path}/{name}")).json() for name in "abc"]
                assert found == cards["data"] and [each["state"] for each in found] == [*states.values()]
                assert (await machine.http.get(f"{path}/d")).status_code == 404
        await machine.ask("a")
        assert machine.loads == {"a": 1, "b": 1, "c": 1}
        page = (await machine.http.get("/metrics")).text
        assert all(f'tiny_llm:num_requests_running{{model_name="{name}"}}' in page for name in "ab")
        assert page.count("# TYPE tiny_llm:num_requests_running ") == 1

    on_machine(scenario)


def test_a_model_may_have_a_name_of_anthropics():
    """Others of these names are the first model, where Anthropic's clients send them."""
    names = ("a", "claude-opus", "claude-haiku")

    async def scenario(machine):
        for path in ("completions", "chat/completions", "messages"):
            for name in names:
                loads = dict(machine.loads)
                await machine.http.post("/models/unload", json={"model": name})
                await machine.http.post(f"/v1/{path}", json={"model": name})
                assert machine.loads == {**loads, name: loads.get(name, 0) + 1}, (path, name)
            loads = dict(machine.loads)
            answer = await machine.http.post(f"/v1/{path}", json={"model": "claude-9"})
            assert machine.loads == loads, "none is loaded to refuse a name"
            assert path == "messages" or (answer.status_code == 404 and "claude-haiku" in answer.text)
        assert (await machine.http.get("/v1/models/claude-9")).status_code == 404
        for action in ("load", "unload"):
            answer = await machine.http.post(f"/models/{action}", json={"model": "claude-9"})
            assert answer.status_code == 404
        assert set((await machine.states()).values()) == {"loaded"}
        await machine.http.post("/models/unload", json={"model": "a"})
        await machine.http.post("/v1/messages", json={"model": "claude-9"})
        assert (await machine.states())["a"] == "loaded"

    on_machine(scenario, names=names)


def test_idle_models_are_unloaded_and_busy_ones_are_not():
    async def scenario(machine):
        machine.router.watch()
        await machine.ask("a")
        async with machine.models["b"].used():
            machine.clock.now += 100
            while machine.num_loaded == 2:
                await asyncio.sleep(0.001)
            assert await machine.states() == {"a": "unloaded", "b": "loaded", "c": "unloaded"}
        assert (await machine.ask("a")).status_code == 200
        assert machine.loads == {"a": 2, "b": 1}

    on_machine(scenario, idle_unload_s=0.004)


def test_models_are_loaded_unloaded_and_pinned_by_request():
    async def scenario(machine):
        async def tell(action, **body):
            answer = await machine.http.post(f"/models/{action}", json=body)
            return answer.status_code, answer.json().get("success", answer.text)

        assert await tell("load", model="a") == await tell("load", model="b", pinned=True) == (200, True)
        assert await machine.states() == {"a": "loaded", "b": "loaded", "c": "unloaded"}
        listed = (await machine.http.get("/models")).json()["data"]
        pinned = [(each["pinned"], each["status"]["value"]) for each in listed[1:]]
        assert pinned == [(True, "loaded"), (False, "unloaded")]
        assert (await machine.ask("c")).status_code == 200, "a makes room, which was used last but one"
        assert await machine.states() == {"a": "unloaded", "b": "loaded", "c": "loaded"}
        async with machine.models["c"].used():
            status, said = await tell("load", model="a")
            assert status == 503 and "9 GiB" in said, "b is pinned, and c answers"
            status, said = await tell("unload", model="c")
            assert status == 409 and "answers 1 request" in said and '"code":"model_in_use"' in said
        assert await tell("unload", model="b") == await tell("unload", model="b") == (200, True)
        assert (await machine.http.get("/models/b")).json()["pinned"] is False
        for body in ({}, {"model": 3}, {"model": "d"}, {"model": "a", "pinned": "yes"}):
            assert (await tell("load", **body))[0] in (400, 404)
        assert machine.loads == {"a": 1, "b": 1, "c": 1}

    on_machine(scenario, room=2)


def test_a_request_that_no_route_takes_loads_nothing():
    async def scenario(machine):
        for path, status in (("/v1/nope", 404), ("/health", 405), ("/", 405), ("/v1/completions/x", 404)):
            answer = await machine.http.post(path, json={"model": "b", "prompt": "x"})
            assert (answer.status_code, path in answer.json()["error"]["message"]) == (status, True)
        assert not machine.loads

    on_machine(scenario)


def test_nothing_of_a_model_stays_after_it_is_unloaded():
    async def scenario(machine):
        for name in "ab":
            await machine.ask(name, stream=name == "b")
            engine = weakref.ref(machine.models[name].served.engine)
            await machine.models[name].unload()
            assert engine() is None

    on_machine(scenario)


def test_pinned_models_are_loaded_at_the_start_and_stay():
    async def scenario(machine):
        machine.failures["c"] = UserError("its weights are torn: fetch them again")
        for name in "bc":
            machine.models[name].is_pinned = True
        machine.router.watch()
        while machine.num_loaded == 0:
            await asyncio.sleep(0.001)
        await machine.ask("a")
        machine.clock.now += 100
        while machine.num_loaded == 2:
            await asyncio.sleep(0.001)
        assert await machine.states() == {"a": "unloaded", "b": "loaded", "c": "unloaded"}

    on_machine(scenario, idle_unload_s=0.004)


def test_a_server_that_stops_refuses_and_waits():
    async def scenario(machine):
        async with machine.models["a"].used():
            stopping = asyncio.create_task(machine.router.stop(60))
            await asyncio.sleep(0)
            assert (await machine.ask("a")).status_code == 503
            assert (await machine.http.get("/health")).status_code == 503
            assert not stopping.done()
        assert await stopping == 0

    on_machine(scenario)


@pytest.mark.parametrize(("flags", "amount"), [((), "0.250"), (("--kv-cache-memory", "1G"), "1G")])
def test_models_share_the_memory_unless_each_is_told(flags, amount):
    """Their pools grow, so each would count on what the others have not used yet."""
    parser = ArgumentParser()
    command.add_arguments(parser)
    args = parser.parse_args(["--model", "a=default", "--model", "b=default-hybrid", *flags])
    models = command.by_name(args, RequestLimits())
    assert [each.model.engine.kv_cache_memory for each in models.values()] == [amount] * 2


@pytest.mark.parametrize("other", ["default", "default-hybrid"])
def test_a_name_is_of_one_model(other):
    parser = ArgumentParser()
    command.add_arguments(parser)
    with pytest.raises(UserError, match="has the name a twice: give each model its own"):
        parser.parse_args(["--model", "a=default", "--model", "b=default", "--model", f"a={other}"])
