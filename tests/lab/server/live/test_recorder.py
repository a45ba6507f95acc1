"""What the live page is told of runs whose every step is known."""

import random

import pytest
from tests.helpers.toy_server import FACTS, Stepped, report_of

from tiny_llm_lab.serving.async_engine.listener import AddedRequest
from tiny_llm_lab.serving.async_engine.messages import Queues
from tiny_llm_lab.serving.server.live.recorder import StepRecorder
from tiny_llm_lab.types import Completion, EngineOutput, SamplingParams, SchedulerConfig, StepPlan, Timing

DONE = Completion(0, 1, (), "", "stop", Timing(0.0))
CONFIG = SchedulerConfig(max_num_batched_tokens=16, max_num_seqs=2, max_model_len=64)


class Run(Stepped):
    """A stepped engine and its recorder."""

    def __init__(self, config=CONFIG, max_events=100, **options):
        self.recorder = StepRecorder(max_events)
        super().__init__(self.recorder, config, **options)

    def events(self, kind):
        return [event for event in self.recorder.since(0)[0] if event["type"] == kind]


def test_blocks_are_told_by_owner_with_those_from_the_prefix_cache():
    run = Run(SchedulerConfig(max_num_batched_tokens=64, max_num_seqs=4, max_model_len=64), num_blocks=20)
    run.add("a", [97] * 40, max_tokens=10)
    run.step()
    run.add("b", [97] * 36, max_tokens=10)
    run.step()
    last = run.events("step")[-1]
    assert last["blocks"] == [(1, 3, 0), (2, 3, 2)]
    assert last["free"] == 20 - 4, "two of the six are the same blocks"


@pytest.mark.parametrize("seed", range(9))
def test_what_is_told_is_that_of_a_simple_model(seed):
    """Ids come again after their requests have left; who is preempted computes prompt tokens again."""
    rng, recorder, events, numbers, decoding = random.Random(seed), StepRecorder(9999), [], {}, set()
    recorder.started(FACTS)
    for count in range(60):
        name = rng.choice("abc")
        if name not in numbers:
            numbers[name] = 1 + sum(each[0] == "added" for each in events)
            recorder.added(AddedRequest(name, count, SamplingParams(), 0.0), Queues())
            events.append(("added", numbers[name]))
        some = {each: rng.randint(1, 9) for each in "abc" if rng.random() < 0.7}
        lost = tuple(each for each in "abc" if rng.random() < 0.1)
        held = tuple((each, 3, 16 * size) for each, size in some.items())
        recorder.stepped(report_of(StepPlan(some, lost), held))
        decoding -= {*lost}
        known = [each for each in some if each in numbers]
        parts = [(numbers[each], some[each], each in decoding) for each in known]
        blocks = [(numbers[each], 3, some[each]) for each in known]
        events.append(("step", parts, blocks, 256, 5, 6, 1000.0))
        done, tokens = rng.choice((None, DONE)), (7,) * rng.randrange(3)
        recorder.produced([EngineOutput(name, tokens, "", done), EngineOutput("gone", (7,), "", done)])
        events.append(("sampled", [(numbers[name], len(tokens))] * bool(tokens)))
        decoding |= {name} if tokens else set()
        recorder.aborted(other := rng.choice("abcd"), Queues())
        left = [each for each in dict.fromkeys([name] * bool(done) + [other]) if each in numbers]
        decoding -= {*left}
        events += [("left", numbers.pop(each)) for each in left]
        state, position = recorder.snapshot()  # for a page that comes later
        assert state[0]["type"] == "config" and recorder.since(position) == ([], len(events) + 1)
        assert [each["request"] for each in state[1:]] == sorted(numbers.values())
    keys = {"step": ("parts", "blocks", "budget", "waiting", "free", "ms"), "sampled": ("tokens",)}
    for (kind, *want), each in zip(events, recorder.since(0)[0][1:], strict=True):
        each["ms"] = round(each.get("end_ms", 0) - each.get("start_ms", 0))
        assert (each["type"], [each[key] for key in keys.get(kind, ("request",))]) == (kind, want)
    recorder.started(FACTS)  # another one, as the first has died
    assert len(recorder.snapshot()[0]) == 1


def test_the_ring_keeps_the_newest():
    run = Run(max_events=5)
    _, start = run.recorder.since(0)
    run.add("a", [97] * 3, max_tokens=10)
    run.run()
    events, position = run.recorder.since(start)
    assert len(events) == 5 and events[-1]["type"] == "left"
    assert run.recorder.since(position - 2)[0] == events[-2:]
