"""A machine that is short of memory: what an engine gives back, who waits, and what is said about it."""

import asyncio
import ctypes
import logging
import platform
from typing import Any

import mlx.core as mx
import pytest
from tests.helpers.fake_clock import FakeClock
from tests.helpers.fake_engine import fake_server, wait_until
from tests.helpers.machines import MAC_8, pretend
from tests.helpers.toy import ByteTokenizer, toy_model

import tiny_llm_ref
from tiny_llm_lab import LLM
from tiny_llm_lab.runtime.growing_pool import GrowingModel, GrowingPool
from tiny_llm_lab.runtime.memory import MemoryPressure, NoPressure, memory_pressure
from tiny_llm_lab.runtime.ranks import _RANK
from tiny_llm_lab.serving import building, memory_keeper
from tiny_llm_lab.serving.async_engine.model import on_thread, run_model
from tiny_llm_lab.serving.memory_keeper import MemoryKeeper
from tiny_llm_lab.serving.options.engine_settings import EngineSettings, ModelSettings
from tiny_llm_lab.types import EngineOptions, Prompt, SamplingParams, SchedulerConfig

LONG = SamplingParams(max_tokens=40, ignore_eos=True)
SHORT = SamplingParams(max_tokens=2, ignore_eos=True)


class Mac:
    """An engine with 640 blocks, 10 at first; the machine has `percent` of its memory left."""

    def __init__(self):
        self.percent, self.clock = 60, FakeClock()
        self.keeper = MemoryKeeper(MemoryPressure(lambda: self.percent, self.clock))
        growing = GrowingModel(toy_model(tiny_llm_ref))
        options = EngineOptions(640, 4, async_scheduling=True, on_step=self.keeper.on_step(None))
        config = SchedulerConfig(max_model_len=100, max_num_seqs=6)
        self.engine = tiny_llm_ref.Engine(growing, ByteTokenizer(), config, options)
        self.keeper.watch(self.engine, growing.pools, 6)
        [self.pool] = growing.pools
        self.scheduler = self.engine.core.scheduler

    def queues(self):
        """How many run, and how many wait."""
        return len(self.scheduler.running), len(self.scheduler.waiting)

    def add(self, count, sampling=SHORT, length=20):
        for i in range(count):
            self.engine.add(f"{self.clock.now} {i}", [i, *range(length - 1)], sampling)

    def step(self, percent=None, seconds=0.0):
        self.percent = self.percent if percent is None else percent
        self.clock.now += seconds
        self.engine.step()

    def finish(self):
        while self.engine.has_requests:
            self.engine.step()

    def num_hits(self):
        """Blocks of a prompt, served before, that are found."""
        before = self.engine.core.prefix_cache.num_hit_blocks
        self.add(1)
        self.finish()
        return self.engine.core.prefix_cache.num_hit_blocks - before


def test_pressure_is_low_then_lasting_until_there_is_clearly_enough():
    clock, levels = FakeClock(), [60, 15, 14, 24, 20, 25, 24, 14]
    pressure = MemoryPressure(lambda: levels.pop(0), clock)
    found = []
    while levels:
        found.append(pressure.read())
        clock.now += 1.0
        assert pressure.read() == found[-1], "read once in two seconds"
        clock.now += 1.0
    assert found == ["none", "none", "low", "lasting", "lasting", "none", "none", "low"]
    assert pressure.percent == 14


def test_a_mac_is_asked_by_sysctl(monkeypatch):
    assert isinstance(memory_pressure(), NoPressure) and memory_pressure().read() == "none"
    answers = [0, -1]

    class LibC:
        def sysctlbyname(self, name, level, size, *rest):
            assert (name, size._obj.value, rest) == (b"kern.memorystatus_level", 4, (None, 0))
            level._obj.value, answer = 100 if answers[0] else 37, answers.pop(0)
            return answer

    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    monkeypatch.setattr(ctypes, "CDLL", lambda name: LibC())
    for level in (37, 100):
        pressure = memory_pressure()
        pressure.read()
        assert pressure.percent == level
    monkeypatch.setenv(_RANK, "1")
    assert isinstance(memory_pressure(), NoPressure), "ranks decide alike"


def test_cached_prefixes_go_and_the_pool_shrinks_while_requests_run_on():
    mac = Mac()
    mac.add(6, LONG)
    mac.finish()
    assert mac.num_hits() == 4 and mac.pool.num_stored == 160
    mac.add(1, LONG)
    mac.step(60, 10)
    mac.step(10, 10)
    last = max(mac.scheduler.running[0].block_ids)
    assert last >= 80 and mac.pool.num_stored == 160
    mac.finish()
    assert mac.pool.num_stored == 10 and mac.scheduler.pool.num_free == 640
    assert mac.num_hits() == 0
    mac.scheduler.check()


def test_answers_are_the_same_under_pressure():
    answers = []
    for percents in ([60], [10], [60, 10, 10, 10, 30], [10, 60]):
        mac, found = Mac(), dict[str, tuple[int, ...]]()
        mac.add(6, LONG)
        for step in range(1000):
            mac.clock.now, mac.percent = 2.0 * step, percents[step % len(percents)]
            for each in mac.engine.step():
                found[each.request_id] = found.get(each.request_id, ()) + each.token_ids
        assert not mac.engine.has_requests
        answers.append(found)
    assert len(answers[0]) == 6 and all(each == answers[0] for each in answers)


def test_requests_start_in_the_blocks_that_are_there_then_wait():
    mac = Mac()
    mac.add(1, LONG)
    mac.step()
    mac.step(10, 2)
    mac.add(2, length=12)
    mac.step()
    mac.step()
    assert mac.queues() == (2, 1), "six blocks of ten are held, and a request takes four"
    mac.step(10, 2)
    mac.add(2)
    while mac.scheduler.running[0].num_tokens < 50:
        mac.step()
    assert mac.queues() == (1, 3), "the one that runs goes on, and no other starts"
    mac.step(60, 2)
    mac.step()
    assert mac.queues() == (4, 0) and mac.engine.core.config.max_num_seqs == 6
    mac.finish()


def test_one_request_may_always_run():
    mac, most = Mac(), 0
    mac.percent = 5
    for mac.clock.now in (2, 4):
        mac.keeper.idle()
    mac.add(3)
    while mac.engine.has_requests:
        mac.step()
        most = max(most, mac.queues()[0])
    assert most == 1


def test_changes_are_said_once(caplog):
    mac = Mac()
    with caplog.at_level(logging.INFO):
        mac.add(1, LONG)
        for percent in (60, 14, 14, 14, 60, 60):
            mac.step(percent, 2)
            mac.step()
    assert [each.message.partition(":")[0] for each in caplog.records] == [
        "short of memory", "still short of memory", "enough memory again (60 % available)"
    ]  # fmt: skip


@pytest.mark.parametrize("device", [mx.cpu, mx.gpu])
def test_an_idle_gpu_keeps_no_freed_buffers(device, monkeypatch):
    mac, calls = Mac(), []
    monkeypatch.setattr(mx, "clear_cache", lambda: calls.append(mac.engine.has_requests))
    mac.add(2)
    mac.step()
    monkeypatch.setattr(mx, "default_device", lambda: mx.Device(device))
    mac.finish()
    assert calls.count(False) == (device == mx.gpu), "when the last request has ended"


def test_an_idle_server_looks_again_and_health_says_so(monkeypatch):
    pressure = MemoryPressure(lambda: 10)
    pressure.interval_s = 0.001
    monkeypatch.setattr(memory_keeper, "memory_pressure", lambda: pressure)

    async def idle():
        running = await run_model(on_thread(ModelSettings(engine=EngineSettings(num_blocks=8))))
        await asyncio.to_thread(wait_until, lambda: running.engine.memory_note.startswith("still"))
        await running.engine.stop()
        return running.engine.memory_note

    note = asyncio.run(idle())
    with fake_server() as server:
        assert server.get("/health").json() == {"status": "ok"}
        server.async_engine.memory_note = note
        answer = server.get("/health")
        assert answer.status_code == 200
        assert answer.json()["memory"].startswith("still short of memory: new requests wait")


# Macs that are only claimed: what one of 8 GB gets, and that it serves


GIB = 2**30
# Keys and values as of Qwen3-4B, 288 KiB a token in float32; small matrices.
SERVED = "random:qwen3-4b,hidden=64,heads=8,inner=64,vocab=259,bits=32"
PROMPTS = [
    Prompt([(7 * i + j) % 250 for j in range(40)], SamplingParams(max_tokens=3, ignore_eos=True))
    for i in range(4)
]


@pytest.mark.long
def test_a_mac_of_8_gb_serves_from_a_pool_that_grows_and_shrinks(monkeypatch):
    monkeypatch.setenv("TINY_LLM_KERNELS", "mlx")
    with LLM(SERVED, kv_cache_memory="64M") as whole:
        want = [each.token_ids for each in whole.generate(PROMPTS)]
    pretend(monkeypatch, MAC_8, active=int(2.88 * GIB))  # this model's weights and those of other programs
    monkeypatch.setattr(mx, "set_wired_limit", lambda limit: 0)
    monkeypatch.setattr(mx, "set_cache_limit", lambda limit: 0)
    monkeypatch.setattr(building, "step_budget", lambda *model: 512)
    percent, clock = [50], FakeClock()
    pressure = MemoryPressure(lambda: percent[0], clock)
    monkeypatch.setattr(memory_keeper, "memory_pressure", lambda: pressure)
    stored: list[int] = []
    with LLM(SERVED, on_step=lambda plan, stats: stored.append(pool.num_stored)) as llm:
        core: Any = llm.engine.core
        pool = core.kv_cache
        assert isinstance(pool, GrowingPool) and 12 <= pool.num_blocks < 39
        first, block = pool.num_stored, 16 * 288 * 2**10
        assert first == 1 and pool.nbytes == block
        for hits in (0, 4 * 2 * 16):
            assert [each.token_ids for each in llm.generate(PROMPTS)] == want
            assert core.prefix_cache.num_hit_tokens == hits
        most = pool.num_stored
        assert most >= 12 and stored == sorted(stored), "12 blocks run, others stay cached"
        percent[0], clock.now = 5, 10.0
        assert llm.generate(PROMPTS[:1])[0].token_ids == want[0]
        assert pool.num_stored == first and pool.nbytes == block
        percent[0], clock.now = 50, 20.0
        assert [each.token_ids for each in llm.generate(PROMPTS)] == want
        assert pool.num_stored == most
