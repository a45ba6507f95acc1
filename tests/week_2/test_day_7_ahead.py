"""Day 2.7: a decode step that begins before the one in front is read, and changes no answer."""

import mlx.core as mx
import pytest
from tests.helpers.ahead import assert_same_events, num_ahead, steps_of, streamed, watched
from tests.helpers.any_batch import AnyBatch
from tests.helpers.batching import joined
from tests.helpers.fakes import FakeModel
from tests.helpers.phases import arrival_of, limited, run_all
from tests.helpers.toy import ByteTokenizer

from tiny_llm_lab.types import BatchSettings, SamplingParams

pytestmark = pytest.mark.task("2.7.9")


# The order of a step and of a read


@pytest.mark.parametrize("ahead", [False, True])
def test_a_stream_launches_the_next_step_before_it_reads_this_one(llm, monkeypatch, ahead):
    model = FakeModel()
    log = watched(llm, monkeypatch, model)
    sampling = SamplingParams(max_tokens=4, ignore_eos=True)
    events = list(streamed(llm, model, "abc", sampling, async_scheduling=ahead))
    forward, read = "forward", "read"
    usual, early = [forward, read] * 3, [forward, forward, read, forward, read, read]
    assert steps_of(log)[1:] == (early if ahead else usual), "behind the prompt; none follows the last token"
    assert list(events[-1].completion.token_ids) == model.answer_to(b"abc", 4)


@pytest.mark.parametrize("ahead", [False, True])
def test_a_batch_launches_the_next_step_before_it_reads_this_one(llm, monkeypatch, ahead):
    model = FakeModel()
    log = watched(llm, monkeypatch, model)
    run_all(llm, [limited("ab", 4), limited("cde", 6)], model, async_scheduling=ahead)
    steps = [call.offset for call in model.decode_calls()]
    assert steps == [[2], [3, 3], [4, 4], [5], [6], [7]], "a step is neither added nor left out"
    chunk, launch, read = "forward", "forward", "read"
    early = [chunk, chunk, launch, read]  # no step ahead of a join
    early += [launch, launch, read, read]  # and none behind the last token of a row
    early += [launch, launch, read, launch, read, read]
    assert steps_of(log) == (early if ahead else [chunk, chunk, *[launch, read] * 6])


@pytest.mark.parametrize("case", ["other rows", "another order", "last by max_tokens", "last by max_seq_len"])
def test_nothing_is_launched_when(llm, case):
    model = FakeModel()
    most, room = {"last by max_tokens": (2, 9), "last by max_seq_len": (None, 4)}.get(case, (None, 9))
    requests = [
        llm.Request(
            model, ByteTokenizer(), arrival_of(prompt, SamplingParams(max_tokens=most)), max_seq_len=room
        )
        for prompt in ("abc", "xyz")
    ]
    for request in requests:
        request.try_prefill()
    kv_cache = joined(llm, [request.kv_cache for request in requests])
    step = llm.DecodeStep.launch(model, kv_cache, requests)
    num_calls = len(model.calls)
    now = {"other rows": requests[:1], "another order": requests[::-1]}.get(case, requests)
    assert step.launch_next(now) is None
    assert len(model.calls) == num_calls


# The same events


@pytest.mark.parametrize("seed", range(30))
def test_a_batch_tells_the_same_in_any_schedule(llm, seed):
    in_turn, ahead = (AnyBatch(seed, temperatures=(0.0, 0.0, 0.9), event_s=0.1) for _ in "12")
    done = in_turn.run(run_all, llm)
    again = ahead.run(run_all, llm, ahead=True)
    assert_same_events(ahead.told, in_turn.told)
    assert again == done
    stopped = sum(each.finish_reason == "stop" for each in done)
    assert 0 <= len(ahead.model.calls) - len(in_turn.model.calls) <= stopped, "one step at most for each end"


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
