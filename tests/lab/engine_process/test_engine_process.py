"""An engine in a process of its own: as one in this process, except that it may die."""

import asyncio
import os
import signal
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import pytest
from tests.helpers.processes import finished, wait_for
from tests.helpers.toy import QWEN3

from tiny_llm_lab import LLM, SamplingParams
from tiny_llm_lab.runtime.models.random import random_checkpoint
from tiny_llm_lab.serving.async_engine import process_group
from tiny_llm_lab.serving.async_engine.engine import AsyncEngine
from tiny_llm_lab.serving.async_engine.listener import EngineListener
from tiny_llm_lab.serving.async_engine.loop import DEVICE_LOST, is_lost
from tiny_llm_lab.serving.async_engine.messages import (
    DeviceLostError,
    EngineFacts,
    EngineStoppedError,
    NewRequest,
    Ready,
)
from tiny_llm_lab.serving.async_engine.model import EngineProcess, EngineThread
from tiny_llm_lab.serving.options.engine_settings import EngineSettings, ModelSettings
from tiny_llm_lab.serving.server.metrics.engine_metrics import EngineMetrics
from tiny_llm_lab.types import SchedulerConfig, StructuredOutputs, UserError

SMALL = ModelSettings(engine=EngineSettings(num_blocks=256), threads=1)
PROMPT = [5, 6, 7]
TEN = SamplingParams(max_tokens=10, ignore_eos=True)
ENDLESS = SamplingParams(max_tokens=3000, ignore_eos=True)


class Starts(EngineListener):
    """The facts of every start."""

    def __init__(self):
        self.facts = []

    def started(self, facts):
        self.facts.append(facts)


class Served:
    """A running engine, and what it told."""

    def __init__(self, settings):
        self.starts, self.metrics = Starts(), EngineMetrics()
        self.engine = AsyncEngine(EngineProcess(settings), (self.starts, self.metrics))

    async def tokens(self, sampling=TEN, prompt=PROMPT):
        async for output in self.engine.generate(prompt, sampling):
            if output.completion is not None:
                return output.completion.token_ids
        raise AssertionError("no end")

    async def text(self, sampling, prompt):
        outputs = [output async for output in self.engine.generate(prompt, sampling)]
        assert outputs[-1].completion.text == "" or sampling.stop, "the engine makes no text in vain"
        return "".join(output.text for output in outputs), outputs[-1].completion.finish_reason

    async def until_started(self, times):
        while len(self.starts.facts) < times:
            await asyncio.sleep(0.05)

    def kill(self):
        os.kill(self.starts.facts[-1].pid, signal.SIGKILL)


def with_engine(scenario, settings=SMALL):
    async def run():
        served = Served(settings)
        async with asyncio.timeout(200):
            await served.engine.start()
            try:
                await scenario(served)
            finally:
                await asyncio.wait_for(served.engine.stop(), 60)  # or a failure would hang
        assert not _exists(served.starts.facts[-1].pid)
        codes = [each.returncode for each in served.engine._link._group._processes]
        # The first rank that has ended ends the others: a kill may come before their own end.
        killed = {-signal.SIGKILL} if len(codes) > 1 else set()
        assert {*codes} - killed and {*codes} - killed <= {0, DEVICE_LOST}, codes

    asyncio.run(run())


def _exists(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_answers_and_refusals_are_those_of_an_engine_here():
    async def scenario(served):
        assert served.starts.facts[0].pid != os.getpid()
        found = await asyncio.gather(*(served.tokens(TEN, [5, number]) for number in range(20)))
        with LLM(kv_cache_memory="64M") as llm:
            expected = llm.generate([[5, number] for number in range(20)], TEN)
        assert found == [each.token_ids for each in expected]
        form = replace(TEN, ignore_eos=False, structured_outputs=StructuredOutputs(choice=("red", "blue")))
        assert len(await served.tokens(form)) < 10
        wrong = replace(TEN, structured_outputs=StructuredOutputs(regex="("))
        for sampling, prompt, complaint in ((wrong, PROMPT, "cannot be used"), (TEN, [5] * 5000, "4096")):
            with pytest.raises(UserError, match=complaint):
                await served.tokens(sampling, prompt)
        assert await served.tokens() and served.engine.num_requests == 0

    with_engine(scenario)


def test_texts_are_those_of_an_engine_here():
    """Cut anywhere, also within a character; with stop strings, which end an answer in the engine."""
    prompts = [[5, number] for number in range(6)]
    longer = replace(TEN, max_tokens=41, temperature=1.0)
    asked = [TEN, longer, replace(longer, logprobs=2), replace(longer, min_tokens=9, ignore_eos=False)]
    asked += [replace(longer, stop=("e",)), replace(longer, stop=("a", "in"), min_tokens=12)]

    async def scenario(served):
        with LLM(small.model, kv_cache_memory="64M") as llm:
            for sampling in asked:
                found = await asyncio.gather(*(served.text(sampling, prompt) for prompt in prompts))
                expected = [(each.text, each.finish_reason) for each in llm.generate(prompts, sampling)]
                assert found == expected
                cut.extend(text[-1:] for text, _ in expected)
        assert "\N{REPLACEMENT CHARACTER}" in cut

    cut, small = list[str](), replace(SMALL, model="random:qwen3-0.6b,layers=1,vocab=512")
    with_engine(scenario, small)


def test_all_of_several_requests_are_added_or_none():
    async def scenario(served):
        good, bad = (NewRequest(f"{name}", PROMPT * size, TEN) for name, size in (("a", 1), ("b", 5000)))
        with pytest.raises(UserError, match="4096"):
            await served.engine.add([good, bad])
        with pytest.raises(UserError, match="'a' is in use"):
            await served.engine.add([good, good])
        [stream] = await served.engine.add([good])
        assert sum([len(output.token_ids) async for output in stream]) == 10
        assert served.metrics.totals().generation_tokens == 10

    with_engine(scenario)


def test_a_later_process_may_have_less_memory_and_keeps_the_rest():
    """A length that fitted into memory once is not asked for; one that the user asks for is."""
    for length in (None, 300):
        link, config = EngineProcess(replace(SMALL, max_model_len=length)), SchedulerConfig(max_model_len=300)
        link._sink = Mock()
        link._receive([Ready(EngineFacts(QWEN3, config, 1024, 16, 1))])
        assert (link._settings.max_model_len, link._settings.engine.config) == (length, config)


def test_a_killed_engine_fails_its_requests_and_serves_again_as_configured(caplog):
    async def scenario(served):
        before = await served.tokens()
        await served.engine.reconfigure(True, 100)
        for times in (2, 3):
            running = [asyncio.ensure_future(served.tokens(ENDLESS)) for _ in range(4)]
            while served.metrics.totals().num_requests_running < 4:
                await asyncio.sleep(0.01)
            served.kill()
            for each in await asyncio.gather(*running, return_exceptions=True):
                assert isinstance(each, EngineStoppedError), each
            with pytest.raises(EngineStoppedError, match="starting again"):
                await served.tokens()
            assert not served.engine._adding, "what is refused leaves nothing behind"
            await served.until_started(times)
            assert await served.tokens() == before
        killed = "the engine's process was killed, maybe by the system for want of memory"
        assert caplog.messages.count(killed) == 2
        first, *later = served.starts.facts
        assert [each.config.max_num_batched_tokens for each in later] == [100, 100]
        assert {each.num_blocks for each in later} == {first.num_blocks}
        totals = served.metrics.totals()
        assert totals.request_success["error"] == 8 and totals.num_requests_running == 0
        assert totals.prompt_tokens == 3 * 11, "counters go on"

    with_engine(scenario)


def test_when_one_rank_dies_all_are_started_again():
    async def scenario(served):
        first = await asyncio.gather(*(served.tokens(TEN, [5, number]) for number in range(8)))
        link = served.engine._link
        assert isinstance(link, EngineProcess) and link._group is not None
        os.kill(link._group._processes[1].pid, signal.SIGKILL)
        await served.until_started(2)
        assert await asyncio.gather(*(served.tokens(TEN, [5, number]) for number in range(8))) == first

    settings = replace(SMALL, tensor_parallel_size=2)
    engine = replace(settings.engine, kv_cache_memory="64M", draft_gate=False)
    with_engine(scenario, replace(settings, engine=engine))


def test_a_model_that_cannot_be_served_is_an_error_and_no_process_stays(monkeypatch):
    monkeypatch.setattr(random_checkpoint, "find_or_make", {}.__getitem__)  # lengths need no weights

    async def run(settings, complaint):
        served = Served(settings)
        with pytest.raises(UserError, match=complaint):
            await served.engine.start()
        assert not served.starts.facts and not children()

    for settings, complaint in (
        (replace(SMALL, max_model_len=10**6), "1 to 4096 .* give a copy of it rope_scaling"),
        (replace(SMALL, model="random:qwen3-32b", max_model_len=40961), "1 to 40960 .* rope_scaling"),
        (replace(SMALL, model="no-such-model"), "unknown"),
    ):
        asyncio.run(asyncio.wait_for(run(settings, complaint), 100))


def children():
    """The process ids of those that this process has started and that run."""
    found = finished(["pgrep", "-P", str(os.getpid()), "-f", "engine_process"])
    return found.stdout.split()


_PARENT = """
import asyncio, os, sys
from tests.lab.engine_process.test_engine_process import ENDLESS, SMALL, Served

async def run():
    served = Served(SMALL)
    await served.engine.start()
    asyncio.ensure_future(served.tokens(ENDLESS))
    await asyncio.sleep(0.1)
    print(served.starts.facts[0].pid, flush=True)
    await asyncio.sleep(1000)

asyncio.run(run())
"""


def test_an_engine_does_not_outlive_its_server():
    path = os.pathsep.join([str(Path(__file__).parents[3]), *filter(None, sys.path)])
    with subprocess.Popen(
        [sys.executable, "-c", _PARENT], stdout=subprocess.PIPE, env=os.environ | {"PYTHONPATH": path}
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        parent.kill()
    wait_for(lambda: not _exists(pid), "the end of the engine")


def test_an_engine_whose_device_has_failed_ends_and_starts_again_once_a_minute(monkeypatch, caplog):
    """Metal refuses all later work of such a process, so that only another one may try."""
    monkeypatch.setattr(process_group, "_MODULE", "tests.helpers.failing_engine")

    async def scenario(served):
        for starts, says in ((2, "is started again in 0.5 s"), (2, "is started again in 60 s")):
            with pytest.raises(DeviceLostError, match=r"the device has failed: .METAL. .*GPU Timeout"):
                await served.tokens()
            while says not in caplog.text:
                await asyncio.sleep(0.05)
            with pytest.raises(EngineStoppedError, match=r"the device has failed.*again in a minute") as told:
                await served.tokens()
            assert told.value.retry_s == 60
            await served.until_started(starts)
        assert len(served.starts.facts) == 2
        assert caplog.messages.count(f"the engine's process ended with exit code {DEVICE_LOST}") == 2

    with_engine(scenario)


@pytest.mark.parametrize("error", [ValueError("a bug"), RuntimeError("[malloc] Unable to allocate 4 bytes")])
def test_other_errors_are_of_a_step_alone(error):
    assert not is_lost(error)
    assert is_lost(RuntimeError("(00000004:kIOGPUCommandBufferCallbackErrorSubmissionsIgnored)"))
    assert is_lost(RuntimeError("[cuda] cudaStreamSynchronize failed: unspecified launch failure"))


def test_the_event_loop_is_woken_once_and_makes_all_calls_in_order():
    link, wakes, done = EngineThread(Mock()), [], []
    link._loop = Mock(is_closed=lambda: False, call_soon_threadsafe=wakes.append)
    for count in range(1, 4):
        for number in range(5):
            link._on_loop(partial(done.append, number))
        link._on_loop(lambda: link._on_loop(partial(done.append, 9)))  # the engine tells something meanwhile
        assert len(wakes) == 1
        while wakes:
            wakes.pop()()
        assert done == [*range(5), 9] * count
    link._loop = Mock(is_closed=lambda: True, call_soon_threadsafe=None)
    link._on_loop(wakes.clear)  # nothing wakes a closed one
