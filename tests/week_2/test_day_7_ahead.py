"""Day 2.7: a decode step that begins before the one in front is read, and changes no answer."""

import random

import pytest
from tests.helpers.ahead import assert_same_events, steps_of, streamed, told, watched
from tests.helpers.fakes import FakeClock, FakeModel, live_requests
from tests.helpers.phases import arrival_of, limited, run_all, text_of
from tests.helpers.toy import ByteTokenizer

from tiny_llm_lab.types import DoneEvent, Prompt, SamplingParams

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


def test_a_token_that_nobody_has_read_goes_into_the_next_step(llm):
    model = FakeModel()
    requests = [llm.Request(model, ByteTokenizer(), prompt) for prompt in ("abc", "x")]
    kv_cache = [llm.BatchingKvCache(2) for _ in range(model.config.num_hidden_layers)]
    for request in requests:
        request.try_prefill()
        for whole, layer in zip(kv_cache, request.kv_cache, strict=True):
            whole.add_request(layer)
    step = llm.DecodeStep.launch(model, kv_cache, requests)
    behind = step.launch_next(requests)
    assert [request.offset for request in requests] == [3, 1], "nothing is recorded before a step is read"
    assert (model.calls[-1].tokens, model.calls[-1].offset) == ([[t] for t in step.read()], [4, 2])
    for each in (step, behind):
        for request, token in zip(each.requests, each.read(), strict=True):
            request.decode_done(token)
    assert [request.answer.token_ids for request in requests] == [
        model.answer_to(p, 3) for p in (b"abc", b"x")
    ]


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
    kv_cache = [llm.BatchingKvCache(2) for _ in range(model.config.num_hidden_layers)]
    for request in requests:
        request.try_prefill()
        for whole, layer in zip(kv_cache, request.kv_cache, strict=True):
            whole.add_request(layer)
    step = llm.DecodeStep.launch(model, kv_cache, requests)
    num_calls = len(model.calls)
    now = {"other rows": requests[:1], "another order": requests[::-1]}.get(case, requests)
    assert step.launch_next(now) is None
    assert len(model.calls) == num_calls


# The same events


def random_prompts(rng):
    """Prompts that end by a limit, a stop string, an end token or for want of room, greedy and drawn."""
    prompts = []
    for _ in range(rng.randint(2, 9)):
        sampling = SamplingParams(
            max_tokens=rng.choice((None, 1, 2, 9, 20, 30)),
            temperature=rng.choice((0.0, 0.0, 0.9)),
            min_p=rng.choice((0.0, 0.2)),
            seed=rng.randrange(9),
            stop=tuple(rng.sample("abcdefghijkl", rng.choice((0, 2, 5)))),
        )
        arrival_s = rng.choice((0.0, 0.0, rng.random() * 6))
        prompts.append(
            Prompt(
                text_of(rng.choice((0, 1, 3, 5, 9, 20, 30)), rng.randrange(99)), sampling, arrival_s=arrival_s
            )
        )
    return prompts


@pytest.mark.parametrize("seed", range(20))
def test_a_batch_tells_the_same_in_any_schedule(llm, monkeypatch, seed):
    rng = random.Random(seed)
    prompts = random_prompts(rng)
    settings = {
        "max_seq_len": rng.choice((24, 60)),
        "batch_size": rng.choice((1, 3, 5, 8)),
        "prefill_step": rng.choice((1, 3, 8, 128)),
    }
    runs, num_calls = [], []
    for ahead in (False, True):
        # Time is what has happened so far: both runs see the same arrivals.
        clock, events, model = FakeClock(), [], FakeModel()
        clock.take_over(monkeypatch, llm.BatchGenerator)

        def note(event, clock=clock, events=events):
            clock.now += 0.1
            events.append(told(event))

        done = run_all(llm, prompts, model, clock=clock, on_event=note, async_scheduling=ahead, **settings)
        runs.append((events, [(told(DoneEvent(each)), each.timing) for each in done]))
        num_calls.append(len(model.calls))
        assert live_requests(model) == 0
    assert_same_events(runs[1][0], runs[0][0])
    assert runs[1] == runs[0]
    stopped = sum(done[-1] == "stop" for done in (each[0] for each in runs[0][1]))
    assert 0 <= num_calls[1] - num_calls[0] <= stopped, "one step at most for each surprise"
