"""Day 2.7: the stream of one prompt."""

import pytest
from tests.helpers.fakes import FakeModel, live_requests
from tests.helpers.phases import TOKENIZER, UNCHUNKED, kinds, run_all, text_of
from tests.helpers.toy import QWEN2, toy_model

from tiny_llm_lab.types import PrefillEvent, SamplingParams, TokenEvent, UserError


def streamed(llm, model, prompt, sampling=None, **settings):
    settings = {"async_scheduling": False, **settings}
    return llm.stream_generate(model, TOKENIZER, prompt, sampling or SamplingParams(max_tokens=3), **settings)


@pytest.mark.task("2.7.3")
@pytest.mark.parametrize("step", [1, 4, UNCHUNKED])
def test_stream_of_one_prompt(llm, step):
    model = FakeModel()
    events = list(streamed(llm, model, text_of(10), prefill_step=step))
    chunks = [event.num_computed_tokens for event in events if isinstance(event, PrefillEvent)]
    assert chunks == [*range(step, 10, step), 10]
    tokens = [event.token_id for event in events if isinstance(event, TokenEvent)]
    assert tokens == model.answer_to(text_of(10).encode(), 3)
    assert kinds(events[len(chunks) :]) == "TokenEvent TokenEvent TokenEvent DoneEvent", "after the chunks"
    assert list(events[-1].completion.token_ids) == tokens
    assert live_requests(model) == 0


@pytest.mark.task("2.7.3")
def test_stream_yields_as_it_computes(llm):
    model = FakeModel()
    events = streamed(llm, model, text_of(10), prefill_step=4)
    for num_calls in (1, 2, 3, 3, 4, 5, 5):
        next(events)
        assert len(model.calls) == num_calls


@pytest.mark.task("2.7.3")
@pytest.mark.parametrize("num_events", [1, 3, 5])
def test_stream_that_is_closed_gives_its_memory_back(llm, num_events):
    model = FakeModel()
    events = streamed(llm, model, text_of(10), prefill_step=4)
    for _ in range(num_events):
        next(events)
    assert live_requests(model) == 1
    events.close()
    assert live_requests(model) == 0


@pytest.mark.task("2.7.3")
@pytest.mark.parametrize(
    ("prompt", "settings"), [("", {}), ("abc", {"max_seq_len": 2}), ("abc", {"prefill_step": 0})]
)
def test_stream_rejects_what_it_cannot_serve(llm, prompt, settings):
    with pytest.raises(UserError):
        list(streamed(llm, FakeModel(), prompt, **settings))


@pytest.mark.task("2.7.7")
def test_stream_says_what_the_batch_says(llm):
    model = toy_model(llm, QWEN2)
    sampling = SamplingParams(temperature=1.0, seed=2, max_tokens=8)
    (done,) = run_all(llm, [text_of(40)], model, prefill_step=16, sampling=sampling)
    events = list(streamed(llm, model, text_of(40), sampling, prefill_step=7))
    got = events[-1].completion.token_ids
    assert got == done.token_ids, "a stream in chunks of 7 == a batch in chunks of 16, same seed"
    assert "".join(event.text for event in events if isinstance(event, TokenEvent)) == done.text
