"""The loop against a model of it: every request that is added ends once, and every command has one reply."""

import asyncio
import math
import random
import threading
from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import AsyncMock, Mock, call

import pytest
from tests.helpers.fake_engine import FakeEngine, built, on_thread
from tests.helpers.toy import QWEN3

from tiny_llm_lab.serving.async_engine import loop
from tiny_llm_lab.serving.async_engine.engine import AsyncEngine
from tiny_llm_lab.serving.async_engine.loop import DEVICE_LOST, MOST_FAILED, EngineLoop
from tiny_llm_lab.serving.async_engine.messages import (
    Abort,
    Add,
    Added,
    EngineEvent,
    EngineFacts,
    EngineStoppedError,
    Left,
    NewRequest,
    Produced,
    Ready,
    Refused,
    Stepped,
    Stop,
    Working,
)
from tiny_llm_lab.serving.async_engine.wire import (
    Inbox,
)
from tiny_llm_lab.serving.server.live.recorder import StepRecorder
from tiny_llm_lab.types import (
    SamplingParams,
    SchedulerConfig,
    StructuredOutputs,
    UserError,
)

GOOD, BAD = StructuredOutputs(regex="a"), StructuredOutputs(regex="(")
NUM_TURNS = 60


class Copied:
    """A compiled form."""

    def copy(self):
        return self


class FewForms:
    """Compiles one form."""

    def require(self, form, left=None):
        if form == BAD:
            raise UserError("cannot be used")
        return 0.0

    def compile(self, form):
        return Copied()


class Drawn(Inbox):
    """Commands at random, a few at a time; what is compiled comes in at a random later time."""

    def __init__(self, seed, is_shared, events):
        super().__init__()
        self._events = events
        self.is_shared = is_shared
        self._draw = random.Random(seed)
        self._turns = 0
        self.added = {}
        self.aborted = set()
        self.never = set()  # aborted before they could be added

    def take(self, waits, timeout_s):
        self._turns += 1
        is_last = self._turns == NUM_TURNS
        late = list(super().take(waits=False, timeout_s=None)) if is_last or self._draw.random() < 0.3 else []
        new = [self._command() for _ in range(self._draw.randrange(3))]
        return [*late, *new, Stop()] if self._turns == NUM_TURNS + 1 else [*late, *new]

    def _compiling(self):
        replied = {each.number for each in self._events if isinstance(each, Added | Refused)}
        adds = [add for number, add in self.added.items() if number not in replied and not self.is_shared]
        return {each.request_id for add in adds for each in add.requests if each.sampling.structured_outputs}

    def _command(self):
        names = [each.request_id for add in self.added.values() for each in add.requests]
        if names and self._draw.random() < 0.4:
            chosen = tuple(self._draw.sample(names, min(len(names), self._draw.randrange(1, 4))))
            self.aborted.update(chosen)
            self.never.update(self._compiling().intersection(chosen))
            return Abort(chosen)
        number = len(self.added) + 1
        form = self._draw.choice([None, None, GOOD, BAD])
        sampling = SamplingParams(max_tokens=self._draw.randrange(1, 6), structured_outputs=form)
        names = [f"{number}.{part}" for part in range(self._draw.randrange(1, 4))]
        if self._draw.random() < 0.1:
            names.append(names[0])  # the engine refuses it, after it has taken the first
        add = Add(number, tuple(NewRequest(name, [1, 2], sampling) for name in names))
        self.added[number] = add
        return add


@pytest.mark.parametrize("is_shared", [False, True])
@pytest.mark.parametrize("seed", range(40))
def test_every_request_ends_once(seed, is_shared):
    engine, events = FakeEngine(), list[EngineEvent]()
    inbox = Drawn(seed, is_shared, events)
    made = replace(built(engine, EngineFacts(QWEN3, SchedulerConfig(), 1024, 16, 1)), forms=FewForms())
    EngineLoop(lambda on_step: made, events.extend, inbox).run()

    assert isinstance(events[0], Ready)
    replied, open_, ended, seen = dict[int, bool](), set[str](), set[str](), set[str]()
    for event in events[1:]:
        match event:
            case Added(number=number) | Refused(number=number):
                assert number not in replied
                replied[number] = isinstance(event, Added)
                if replied[number]:
                    asked = {each.request_id for each in inbox.added[number].requests}
                    assert asked - inbox.aborted <= set(event.request_ids) <= asked
                    open_.update(event.request_ids)
            case Produced(outputs):
                for each in outputs:
                    assert each.request_id not in ended | inbox.never
                    seen.add(each.request_id)
                    if each.completion is not None:
                        ended.add(each.request_id)
            case Left(names, _, error):
                assert not ended.intersection(names)
                seen.update(names)
                ended.update(names)
                assert error is not None or inbox.aborted.issuperset(names)
    assert not engine.requests, "nothing is left behind"
    assert open_ <= ended
    assert isinstance(events[-1], Left) and isinstance(events[-1].error, EngineStoppedError)
    for number, add in inbox.added.items():
        form = add.requests[0].sampling.structured_outputs
        is_whole = len({each.request_id for each in add.requests}) == len(add.requests)
        assert replied.get(number, True) or not seen.intersection(each.request_id for each in add.requests)
        if number not in replied:
            assert form is not None, "only a form that is compiled may be without a reply at the end"
        elif is_whole or form is None:
            is_left = form is not None and inbox.never.issuperset(each.request_id for each in add.requests)
            assert replied[number] == (is_whole and form != BAD) or (is_left and not replied[number])


def test_who_leaves_while_a_form_is_compiled_was_never_there():
    """Or a live page would draw that request for ever."""
    begun, may_end, recorder = threading.Event(), threading.Event(), StepRecorder()

    def compiled(form):
        begun.set()
        return may_end.wait(60) and Copied()

    async def run():
        made = built(FakeEngine(), EngineFacts(QWEN3, SchedulerConfig(), 1024, 16, 1))
        made.forms.require, made.forms.compile = FewForms().require, compiled
        engine = AsyncEngine(on_thread(made), [recorder])
        await engine.start()
        new = NewRequest("a", [1], SamplingParams(max_tokens=1, structured_outputs=GOOD))
        adding = asyncio.create_task(engine.add([new]))
        await asyncio.to_thread(begun.wait, 60)
        adding.cancel()
        await asyncio.wait([adding])
        may_end.set()
        while engine._adding:
            await asyncio.sleep(0.001)
        await engine.stop()

    asyncio.run(run())
    assert [event["type"] for event in recorder.since(0)[0]] == ["config"]


def test_an_engine_is_started_again_until_it_starts(monkeypatch):
    pause, sleep, link = AsyncMock(), asyncio.sleep, Mock(can_restart=True, stop=AsyncMock())

    def started(sink):
        if link.start.call_count in (2, 3):
            raise OSError("no memory")
        sink.receive([Ready(EngineFacts(QWEN3, SchedulerConfig(), 1024, 16, 1))])

    async def run():
        link.start = AsyncMock(side_effect=started)
        engine = AsyncEngine(link, [None])  # a listener that fails
        await engine.start()
        assert engine.is_ready
        for _ in range(2):  # the second time there is none
            engine.ended()
            with pytest.raises(EngineStoppedError, match="starting again"):
                engine.require_ready()
        while not engine.is_ready:
            await sleep(0)
        await engine.stop()
        engine.ended()
        assert link.start.call_count == 4 and engine._restart is None, "whoever stops it wants no other"

    monkeypatch.setattr(asyncio, "sleep", pause)
    asyncio.run(run())
    assert pause.await_args_list == [call(0.5), call(1.0), call(2.0)]


@pytest.mark.parametrize(("most", "status"), [(MOST_FAILED, DEVICE_LOST), (math.inf, 0)])
def test_a_process_ends_after_some_failed_steps_in_a_row_and_a_thread_does_not(most, status):
    """Of steps that fail ("f") or not, each with a request of its own."""
    engine, events, steps = FakeEngine(), list[EngineEvent](), [*"ff.fff."]

    class Asks(Inbox):
        def take(self, waits, timeout_s):
            if not steps:
                return [Stop()]
            engine.failure = ValueError("a bug") if steps.pop(0) == "f" else None
            return [Add(len(steps), (NewRequest(str(len(steps)), [1], SamplingParams(max_tokens=1)),))]

    made = built(engine, EngineFacts(QWEN3, SchedulerConfig(), 1024, 16, 1))
    assert EngineLoop(lambda on_step: made, events.extend, Asks(), most).run() == status
    assert len(steps) == bool(status)
    told = [str(each.error) for each in events if isinstance(each, Left)]
    assert ("3 steps in a row have failed, the last with a bug" in told) == bool(status)


def test_an_engine_that_reads_pictures_for_long_says_that_it_works(monkeypatch):
    now_s, events = [100.0], list[EngineEvent]()

    class Reads(FakeEngine):
        num_steps = 0

        def step(self):
            now_s[0] += 0.3
            self.num_steps += 1
            return super().step() if self.num_steps > 20 else []

    class Asks(Inbox):
        def take(self, waits, timeout_s):
            one = Add(1, (NewRequest("a", [1], SamplingParams(max_tokens=1)),))
            return [one] if not engine.num_steps else [] if engine.has_requests else [Stop()]

    engine, facts = Reads(), EngineFacts(QWEN3, SchedulerConfig(), 1024, 16, 1)
    monkeypatch.setattr(loop, "time", SimpleNamespace(perf_counter=lambda: now_s[0]))
    EngineLoop(lambda on_step: built(engine, facts), events.extend, Asks()).run()
    kinds = [type(each) for each in events if not isinstance(each, Ready | Added | Stepped)]
    assert kinds == [*[Working] * 5, Produced, Left]
