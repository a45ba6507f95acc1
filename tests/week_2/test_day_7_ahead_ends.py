"""Day 2.7: what becomes of a step ahead when an answer ends, a prompt joins or something fails."""

import mlx.core as mx
import pytest
from tests.helpers.ahead import num_ahead, steps_of, streamed, told, watched
from tests.helpers.fakes import FakeClock, FakeModel, live_requests
from tests.helpers.fragile import BrokenError
from tests.helpers.phases import limited, run_all
from tests.helpers.toy import EOS, ByteTokenizer

from tiny_llm_lab.types import BatchSettings, Prompt, SamplingParams, TokenEvent

pytestmark = pytest.mark.task("2.7.9")


# Surprises


def test_an_end_token_drops_one_row_of_one_step(llm):
    answers = {"ab": [*b"xy", EOS], "cd": list(b"0123456789")}
    calls, events = {}, {False: [], True: []}
    for ahead in (False, True):
        model = FakeModel(answers)
        prompts = [Prompt("ab"), Prompt("cd", SamplingParams(max_tokens=7))]
        done = run_all(llm, prompts, model, on_event=events[ahead].append, async_scheduling=ahead)
        assert [(each.text, each.finish_reason) for each in done] == [("xy", "stop"), ("0123456", "length")]
        calls[ahead] = sum(len(call.tokens) for call in model.decode_calls())
    assert calls[True] == calls[False] + 1
    assert [told(event) for event in events[True]] == [told(event) for event in events[False]]
    alone = FakeModel(answers)
    [done] = run_all(llm, [Prompt("ab")], alone, async_scheduling=True)
    assert done.text == "xy" and len(alone.decode_calls()) == 3, "two steps, and one for nobody"
    stream = FakeModel(answers)
    *_, last = streamed(llm, stream, "ab", SamplingParams(), async_scheduling=True)
    assert last.completion.text == "xy" and len(stream.calls) == 4


def test_a_step_under_way_serves_no_request_that_comes_later(llm):
    answers = {"ab": [*b"xy", EOS], "cd": list(b"0123")}
    clock, model = FakeClock(), FakeModel(answers)
    run = llm.BatchGenerator(
        model,
        ByteTokenizer(),
        [Prompt("ab"), Prompt("cd", SamplingParams(max_tokens=4))],
        BatchSettings(batch_size=1, clock=clock, async_scheduling=True),
    )
    num_idle = 0
    while run.has_work_remaining():
        run.handle_prefill_phase()
        num_idle += not run.handle_decode_phase()
        run.move_prefill_to_decode()
    run.release()
    assert [each.text for each in run.collect_results()] == ["xy", "0123"]
    assert num_idle == 2, "no request decodes while the first chunk of each prompt is computed"


@pytest.mark.parametrize("failure", [KeyboardInterrupt, BrokenError])
def test_memory_comes_back_with_a_step_under_way(llm, failure):
    model = FakeModel()
    given_back = []

    def interrupt(event):
        if isinstance(event, TokenEvent) and len(model.decode_calls()) > 3:
            raise failure

    release = llm.BatchGenerator.release
    with pytest.MonkeyPatch.context() as patch:
        size_after = lambda run: (release(run), given_back.append(run.kv_cache[0].keys.size))  # noqa: E731
        patch.setattr(llm.BatchGenerator, "release", size_after)
        with pytest.raises(failure):
            run_all(llm, [limited("abc", 50)] * 2, model, on_event=interrupt, async_scheduling=True)
    assert given_back == [0] and live_requests(model) == 0
    events = streamed(llm, model, "abc", SamplingParams(max_tokens=50), async_scheduling=True)
    for _ in range(6):
        next(events)
    assert live_requests(model) == 1
    events.close()
    assert live_requests(model) == 0


# When


@pytest.mark.parametrize(
    ("device", "chosen", "is_ahead"),
    [("cpu", None, False), ("gpu", None, True), ("cpu", True, True), ("gpu", False, False)],
)
def test_a_gpu_is_kept_busy_unless_asked_otherwise(llm, monkeypatch, device, chosen, is_ahead):
    model = FakeModel()
    monkeypatch.setattr(mx, "default_device", lambda: getattr(mx, device))
    run = llm.BatchGenerator(model, ByteTokenizer(), [], BatchSettings(async_scheduling=chosen))
    assert run.async_scheduling is is_ahead
    log = watched(llm, monkeypatch, model)
    sampling = SamplingParams(max_tokens=4, ignore_eos=True)
    list(streamed(llm, model, "abc", sampling, async_scheduling=chosen))
    assert (num_ahead(steps_of(log)[1:]) > 0) is is_ahead
