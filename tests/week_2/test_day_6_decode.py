"""Day 2.6: the decode phase."""

import mlx.core as mx
import pytest
from tests.helpers.batching import joined
from tests.helpers.fakes import FakeClock, FakeModel, prefill_by_hand
from tests.helpers.phases import arrival_of
from tests.helpers.tolerance import active_bytes
from tests.helpers.toy import EOS, ByteTokenizer, toy_model

from tiny_llm_lab.types import BatchSettings, DoneEvent, Prompt, SamplingParams, TokenEvent, UserError, Wanted

# The task of each test that names no other.
pytestmark = pytest.mark.task("2.6.4")

TOKENIZER = ByteTokenizer()


def generator(llm, model, prompts=(), batch_size=4, **settings):
    settings = {"clock": FakeClock(), "async_scheduling": False, **settings}
    settings = BatchSettings(batch_size=batch_size).updated(**settings)
    return llm.BatchGenerator(model, TOKENIZER, list(prompts), settings)


def admit(llm, run, model, idx, prompt, **sampling):
    """A request that has been prefilled by hand takes a row of the batch."""
    arrival = arrival_of(prompt, SamplingParams(**sampling), idx)
    request = llm.Request(model, TOKENIZER, arrival, clock=FakeClock())
    prefill_by_hand(model, request)
    for whole, layer in zip(run.kv_cache, request.kv_cache, strict=True):
        whole.add_request(layer)
    request.release()
    request.answer.take_events()
    run.decode_requests.append(request)
    return request


def test_generator_starts_with_all_prompts_waiting(llm):
    model, prompts = FakeModel(), ["a", [1, 2], Prompt("c")]
    run = generator(llm, model, prompts)
    assert (len(run.request_queue), run.pending_prefill_request, run.decode_requests) == (3, None, [])
    assert run.has_work_remaining()
    assert run.collect_results() == []
    assert model.calls == []
    assert prompts == ["a", [1, 2], Prompt("c")]


def test_generator_has_work_while_anything_waits_prefills_or_decodes(llm):
    model = FakeModel()
    run = generator(llm, model)
    assert not run.has_work_remaining()
    run.pending_prefill_request = llm.Request(model, TOKENIZER, "abc")
    assert run.has_work_remaining()
    run.pending_prefill_request = None
    admit(llm, run, model, 0, "abc")
    assert run.has_work_remaining()


@pytest.mark.parametrize(
    "settings", [{"batch_size": 0}, {"prefill_step": 0}, {"max_seq_len": 0}, {"max_seq_len": 5000}]
)
def test_generator_rejects_settings_out_of_range(llm, settings):
    with pytest.raises(UserError):
        generator(llm, FakeModel(), ["a"], **settings)


def test_decode_phase_without_requests_does_nothing(llm):
    model = FakeModel()
    assert generator(llm, model, ["a"]).handle_decode_phase() is False
    assert model.calls == []


@pytest.mark.parametrize(
    ("wanted", "left"),
    [
        (
            [("first", 4), ("second!", 2), ("3", 6), ("the fourth", 2), ("fifth", 3)],
            [{0, 2, 4}, {0, 2}, {2}, {2}, set()],
        ),
        # The row that moves into the gap of row 1 has ended too: it leaves as well, and does not stay behind.
        ([("A", 4), ("B!", 2), ("C", 3), ("the D", 2)], [{0, 2}, {0}, set()]),
    ],
    ids=["in turns", "the last row beside another"],
)
def test_requests_leave_the_batch_as_they_end(llm, wanted, left):
    model = FakeModel(num_layers=3)
    run = generator(llm, model, batch_size=5)
    for idx, (prompt, max_tokens) in enumerate(wanted):
        admit(llm, run, model, idx, prompt, max_tokens=max_tokens)
    found = []
    while run.handle_decode_phase():
        found.append({request.prompt_idx for request in run.decode_requests})
        for layer in run.kv_cache:
            assert layer.offset == [request.offset for request in run.decode_requests]
    assert found == left, "the requests that are left behind each step"
    done = run.collect_results()
    assert [completion.prompt_idx for completion in done] == list(range(len(wanted)))
    for completion, (prompt, max_tokens) in zip(done, wanted, strict=True):
        assert list(completion.token_ids) == model.answer_to(prompt.encode(), max_tokens), prompt


def test_decode_phase_tells_what_happens(llm):
    events = []
    model = FakeModel({"ab": [*b"xy", EOS], "cd": [*b"uvw", EOS]})
    run = generator(llm, model, on_event=events.append)
    for idx, prompt in enumerate(["ab", "cd"]):
        admit(llm, run, model, idx, prompt)
    run.handle_decode_phase()
    assert [(event.prompt_idx, event.text) for event in events] == [(0, "y"), (1, "v")]
    run.handle_decode_phase()
    assert [type(event) for event in events[2:]] == [DoneEvent, TokenEvent]
    assert events[2].completion == run.collect_results()[0]


def test_generator_gives_all_memory_back(llm):
    before = active_bytes()
    model = toy_model(llm)
    mx.eval(model(mx.array([[1]])))
    weights = active_bytes() - before
    run = generator(llm, model)
    for idx, prompt in enumerate(["abc" * 50, "d", "e" * 90]):
        admit(llm, run, model, idx, prompt)
    run.pending_prefill_request = llm.Request(model, TOKENIZER, "pending" * 30)
    prefill_by_hand(model, run.pending_prefill_request)
    run.handle_decode_phase()
    stored = active_bytes() - before - weights
    run.release()
    # A few small arrays live on: the last logits, and the keys of samplers.
    assert active_bytes() - before - weights < stored / 20
    run.release()


# One decode step of several requests


@pytest.mark.task("2.6.3")
def test_a_decode_step_is_one_forward_for_all(llm):
    model, prompts = FakeModel(), ["abc", "a", "a long prompt"]
    requests = [llm.Request(model, TOKENIZER, prompt) for prompt in prompts]
    for request in requests:
        prefill_by_hand(model, request)
    kv_cache = joined(llm, [request.kv_cache for request in requests])
    tokens = [request.next_token for request in requests]
    del model.calls[:]
    step = llm.DecodeStep.launch(model, kv_cache, requests)
    [call] = model.calls
    assert call.tokens == [[token] for token in tokens]
    assert (call.offset, call.last) == ([3, 1, 13], 1)
    wanted = [model.answer_to(prompt.encode(), 2)[1] for prompt in prompts]
    del requests[1:]
    assert step.read() == step.read() == wanted
    assert len(step.requests) == 3, "its requests are a copy"
    assert [request.offset for request in step.requests] == [3, 1, 13], "a step records nothing"


@pytest.mark.task("2.6.3")
def test_a_decode_step_draws_for_the_position_of_the_new_token(llm):
    model, prompt = FakeModel(), [97, 98, 99]
    for seed in range(8):
        sampling = SamplingParams(temperature=2.0, seed=seed)
        request = llm.Request(model, TOKENIZER, arrival_of(prompt, sampling))
        prefill_by_hand(model, request)
        logits = model(mx.array([[*prompt, *request.answer.token_ids]]), wanted=Wanted(last=1))[:, -1]
        got = llm.DecodeStep.launch(model, request.kv_cache, [request]).read()
        at = {position: request.sample(logits, position).tolist() for position in (3, 4, 5)}
        assert got == at[4], (
            f"seed {seed}: 3 tokens of the prompt and 1 of the answer are known, so the new token is at "
            f"position 4: got {got}; the sampler draws, by position, {at}"
        )


@pytest.mark.task("2.6.3")
def test_every_row_of_a_decode_step_is_drawn_by_its_own_sampler(llm):
    def drawn(seeds):
        model = FakeModel()
        requests = [
            llm.Request(model, TOKENIZER, arrival_of("abc", SamplingParams(temperature=2.0, seed=seed)))
            for seed in seeds
        ]
        for request in requests:
            prefill_by_hand(model, request)
            request.answer.token_ids[-1] = 97  # the same past for all
        kv_cache = joined(llm, [request.kv_cache for request in requests])
        return llm.DecodeStep.launch(model, kv_cache, requests).read()

    alone = [drawn([seed])[0] for seed in range(6)]
    assert drawn(range(6)) == alone and len(set(alone)) > 2
