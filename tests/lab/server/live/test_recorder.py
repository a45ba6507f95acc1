"""What the live page is told of runs whose every step is known."""

from tests.helpers.toy import QWEN3
from tests.helpers.toy_server import Stepped

from tiny_llm_lab.serving.async_engine.reports import facts_of
from tiny_llm_lab.serving.server.live.recorder import StepRecorder
from tiny_llm_lab.types import SchedulerConfig

CONFIG = SchedulerConfig(max_num_batched_tokens=16, max_num_seqs=2, max_model_len=64)


class Run(Stepped):
    """A stepped engine and its recorder."""

    def __init__(self, config=CONFIG, max_events=100, **options):
        self.recorder = StepRecorder(max_events)
        super().__init__(self.recorder, config, **options)

    def events(self, kind):
        return [event for event in self.recorder.since(0)[0] if event["type"] == kind]


def test_every_step_is_told_with_its_parts():
    run = Run()
    run.add("a", [97] * 20, max_tokens=3)
    run.add("b", [98] * 3, max_tokens=1)
    run.run()
    steps = run.events("step")
    assert [step["parts"] for step in steps] == [
        [(1, 16, False)],
        [(1, 4, False), (2, 3, False)],
        [(1, 1, True)],
        [(1, 1, True)],
    ]
    assert [step["budget"] for step in steps] == [16] * 4
    assert [step["waiting"] for step in steps] == [1, 0, 0, 0]
    assert all(step["start_ms"] <= step["end_ms"] for step in steps)
    assert [event["tokens"] for event in run.events("sampled")] == [[(1, 1), (2, 1)], [(1, 1)], [(1, 1)]]
    assert [event["request"] for event in run.events("left")] == [2, 1]


def test_blocks_are_told_by_owner_with_those_from_the_prefix_cache():
    run = Run(SchedulerConfig(max_num_batched_tokens=64, max_num_seqs=4, max_model_len=64), num_blocks=20)
    run.add("a", [97] * 40, max_tokens=10)
    run.step()
    run.add("b", [97] * 36, max_tokens=10)
    run.step()
    last = run.events("step")[-1]
    assert last["blocks"] == [(1, 3, 0), (2, 3, 2)]
    assert last["free"] == 20 - 4, "two of the six are the same blocks"


def test_what_a_preempted_request_computes_again_is_prompt():
    run = Run(num_blocks=4, enable_prefix_caching=False)
    run.add("a", [97] * 16, max_tokens=20)
    run.add("b", [98] * 16, max_tokens=20)
    run.run()
    parts = [part for step in run.events("step") for part in step["parts"]]
    again = [part for part in parts if part[1] > 1][2:]
    assert again and all(not is_decode for _, _, is_decode in again)


def test_a_page_that_comes_later_learns_who_is_there():
    run = Run()
    run.add("a", [97] * 20, max_tokens=3)
    run.add("b", [98] * 3, max_tokens=1)
    run.step()
    run.abort("a")
    state, position = run.recorder.snapshot()
    assert [event["type"] for event in state] == ["config", "added"]
    assert state[1] == {"type": "added", "request": 2, "prompt_tokens": 3}
    assert run.recorder.since(position) == ([], position)
    run.step()
    assert [event["type"] for event in run.recorder.since(position)[0]] == ["step", "sampled", "left"]
    run.add("c", [99], max_tokens=9)
    run.recorder.started(facts_of(run.engine, QWEN3))  # another one, as the first has died
    assert [event["type"] for event in run.recorder.snapshot()[0]] == ["config"]


def test_a_step_that_outlives_its_request_has_no_part_of_it():
    run = Run()
    run.add("a", [97] * 3, max_tokens=3)
    run.recorder.aborted("a", run.reports.queues())
    run.engine.step()
    assert run.events("step")[0]["parts"] == []


def test_the_ring_keeps_the_newest():
    run = Run(max_events=5)
    _, start = run.recorder.since(0)
    run.add("a", [97] * 3, max_tokens=10)
    run.run()
    events, position = run.recorder.since(start)
    assert len(events) == 5 and events[-1]["type"] == "left"
    assert run.recorder.since(position - 2)[0] == events[-2:]
