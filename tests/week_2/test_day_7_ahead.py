"""Day 2.7: a decode step that begins before the one in front is read, and changes no answer."""

import random

import mlx.core as mx
import pytest
from tests.helpers.fakes import FakeClock, FakeModel, live_requests
from tests.helpers.fragile import BrokenError
from tests.helpers.phases import limited, run_all, text_of
from tests.helpers.toy import EOS, ByteTokenizer, toy_model

from tiny_llm_lab.types import DoneEvent, PrefillEvent, Prompt, SamplingParams, TokenEvent

pytestmark = pytest.mark.task("2.7.9")


def told(event):
    """What an event says, without its time."""
    if isinstance(event, PrefillEvent):
        return event.prompt_idx, event.num_computed_tokens
    if isinstance(event, TokenEvent):
        return event.prompt_idx, event.token_id, event.text
    done = event.completion
    return done.prompt_idx, done.token_ids, done.text, done.finish_reason


def watched(llm, monkeypatch, model):
    """The log of `model`, in which a read of a step stands beside the forward passes."""
    read = llm.DecodeStep.read

    def logged(step):
        model.log.append("read")
        return read(step)

    monkeypatch.setattr(llm.DecodeStep, "read", logged)
    return model.log


def steps_of(log):
    return [entry for entry in log if not entry.startswith("materialize")]


def streamed(llm, model, prompt, sampling, **settings):
    return llm.stream_generate(model, ByteTokenizer(), prompt, sampling, **settings)


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


def _num_ahead(log):
    """Forward passes that begin while another waits to be read."""
    waiting = count = 0
    for entry in log:
        waiting += 1 if entry == "forward" else -1
        count += entry == "forward" and waiting > 1
    return count


def test_a_token_that_nobody_has_read_goes_into_the_next_step(llm):
    model = FakeModel()
    requests = [llm.Request(model, ByteTokenizer(), prompt) for prompt in ("abc", "x")]
    kv_cache = [llm.BatchingKvCache(2) for _ in range(model.config.num_hidden_layers)]
    for request in requests:
        request.try_prefill()
        for whole, layer in zip(kv_cache, request.kv_cache, strict=True):
            whole.add_request(layer)
    step = llm.DecodeStep(model, kv_cache, requests)
    behind = step.launch_next(requests)
    assert [request.offset for request in requests] == [3, 1], "nothing is recorded before a step is read"
    assert (model.calls[-1].tokens, model.calls[-1].offset) == ([[t] for t in step.read()], [4, 2])
    for each in (step, behind):
        for request, token in zip(each.requests, each.read(), strict=True):
            request.decode_done(token)
    assert [request.token_ids for request in requests] == [model.answer_to(p, 3) for p in (b"abc", b"x")]


@pytest.mark.parametrize("case", ["other rows", "another order", "last by max_tokens", "last by max_seq_len"])
def test_nothing_is_launched_when(llm, case):
    model = FakeModel()
    most, room = {"last by max_tokens": (2, 9), "last by max_seq_len": (None, 4)}.get(case, (None, 9))
    requests = [
        llm.Request(
            model, ByteTokenizer(), prompt, max_seq_len=room, sampling=SamplingParams(max_tokens=most)
        )
        for prompt in ("abc", "xyz")
    ]
    kv_cache = [llm.BatchingKvCache(2) for _ in range(model.config.num_hidden_layers)]
    for request in requests:
        request.try_prefill()
        for whole, layer in zip(kv_cache, request.kv_cache, strict=True):
            whole.add_request(layer)
    step = llm.DecodeStep(model, kv_cache, requests)
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
    assert runs[1] == runs[0]
    stopped = sum(done[-1] == "stop" for done in (each[0] for each in runs[0][1]))
    assert 0 <= num_calls[1] - num_calls[0] <= stopped, "one step at most for each surprise"


def test_the_tokens_of_real_rows_are_the_same(llm):
    model = toy_model(llm)
    prompts = [
        Prompt(
            text_of(20 + 9 * i, i), SamplingParams(max_tokens=4 + 5 * i, temperature=i / 2, min_p=0.1, seed=i)
        )
        for i in range(4)
    ]
    runs = [
        run_all(llm, prompts, model, batch_size=3, prefill_step=16, async_scheduling=ahead)
        for ahead in (False, True)
    ]
    assert [each.token_ids for each in runs[1]] == [each.token_ids for each in runs[0]]


@pytest.mark.parametrize("seed", range(6))
def test_a_stream_tells_the_same(llm, seed):
    rng = random.Random(seed)
    for prompt in random_prompts(rng):
        if not prompt.content:
            continue
        runs = [
            [
                told(event)
                for event in streamed(
                    llm, FakeModel(), prompt.content, prompt.sampling, max_seq_len=36, async_scheduling=ahead
                )
            ]
            for ahead in (False, True)
        ]
        assert runs[1] == runs[0]


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


def test_a_row_that_is_left_is_taken_by_the_next_request(llm):
    answers = {"ab": [*b"xy", EOS], "cd": list(b"0123456789"), "ef": [*b"uvw", EOS], "gh": list(b"98765")}
    prompts = [Prompt("ab"), Prompt("cd", SamplingParams(max_tokens=10)), Prompt("ef")]
    prompts.append(Prompt("gh", SamplingParams(max_tokens=5)))
    done = run_all(llm, prompts, FakeModel(answers), batch_size=2, async_scheduling=True)
    assert [each.text for each in done] == ["xy", "0123456789", "uvw", "98765"]


def test_a_step_under_way_serves_no_request_that_comes_later(llm):
    answers = {"ab": [*b"xy", EOS], "cd": list(b"0123")}
    clock, model = FakeClock(), FakeModel(answers)
    run = llm.BatchGenerator(
        model,
        ByteTokenizer(),
        [Prompt("ab"), Prompt("cd", SamplingParams(max_tokens=4))],
        batch_size=1,
        clock=clock,
        async_scheduling=True,
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
        patch.setattr(
            llm.BatchGenerator, "release", lambda run: (release(run), given_back.append(run.kv_cache[0].keys))
        )
        with pytest.raises(failure):
            run_all(llm, [limited("abc", 50)] * 2, model, on_event=interrupt, async_scheduling=True)
    assert given_back == [None] and live_requests(model) == 0
    events = streamed(llm, model, "abc", SamplingParams(max_tokens=50), async_scheduling=True)
    for _ in range(6):
        next(events)
    assert live_requests(model) == 1
    events.close()
    assert live_requests(model) == 0


# When


@pytest.mark.parametrize(
    ("device", "chosen", "is_ahead"),
    [
        ("cpu", None, False),
        ("gpu", None, True),
        ("cpu", True, True),
        ("gpu", False, False),
    ],
)
def test_a_gpu_is_kept_busy_unless_asked_otherwise(llm, monkeypatch, device, chosen, is_ahead):
    model = FakeModel()
    monkeypatch.setattr(mx, "default_device", lambda: getattr(mx, device))
    run = llm.BatchGenerator(model, ByteTokenizer(), [], async_scheduling=chosen)
    assert run.async_scheduling is is_ahead
    log = watched(llm, monkeypatch, model)
    sampling = SamplingParams(max_tokens=4, ignore_eos=True)
    list(streamed(llm, model, "abc", sampling, async_scheduling=chosen))
    assert (_num_ahead(steps_of(log)[1:]) > 0) is is_ahead
