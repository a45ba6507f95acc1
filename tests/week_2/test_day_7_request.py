"""Day 2.7: a request that is prefilled one chunk at a time, and the stream of one prompt."""

import mlx.core as mx
import pytest
from tests.helpers.fakes import FakeModel, live_requests
from tests.helpers.phases import TOKENIZER, UNCHUNKED, kinds, text_of
from tests.helpers.tolerance import F32_MODEL, assert_close
from tests.helpers.toy import QWEN2, QWEN3, random_tokens, toy_model

from tiny_llm_lab.types import PrefillEvent, SamplingParams, TokenEvent, UserError

# The task of each test that names no other.
pytestmark = pytest.mark.task("2.7.3")

LENGTHS_AND_STEPS = [
    (length, step)
    for step in (1, 4, 32)
    for length in sorted({1, step - 1, step, step + 1, 3 * step + 1} - {0})
] + [(100, UNCHUNKED)]


@pytest.mark.parametrize(("length", "step"), LENGTHS_AND_STEPS)
def test_chunked_prefill_computes_every_token_once_in_order(llm, length, step):
    model, prompt = FakeModel(), text_of(length)
    request = llm.Request(model, TOKENIZER, prompt, step)
    done = 0
    while not request.is_prefill_done:
        computed = request.try_prefill()
        done += computed
        assert 1 <= computed <= step
        assert request.offset == done
    starts = list(range(0, length, step))
    assert [call.offset for call in model.calls] == starts
    assert [call.length for call in model.calls] == [min(step, length - start) for start in starts]
    assert [call.last for call in model.calls] == [0] * (len(starts) - 1) + [1], "one row of logits in all"
    assert [token for call in model.calls for token in call.tokens[0]] == list(prompt.encode())
    assert request.answer.token_ids == model.answer_to(prompt.encode(), 1)
    assert request.next_token == request.answer.token_ids[0]


def test_chunked_prefill_materialises_every_layer_before_the_next_chunk(llm):
    model = FakeModel(num_layers=3)
    request = llm.Request(model, TOKENIZER, text_of(10), 4)
    for _ in range(3):
        del model.log[:]
        request.try_prefill()
        after = model.log[model.log.index("forward") + 1 :]
        assert {f"materialize {layer}" for layer in range(3)} <= set(after), f"after the pass: {after}"


def test_chunked_prefill_samples_only_after_the_last_chunk(llm):
    request = llm.Request(FakeModel(), TOKENIZER, text_of(9), 4)
    draws = []
    sample = request.sample
    request.sample = lambda *args: draws.append((request.offset, args[1])) or sample(*args)
    for _ in range(2):
        request.try_prefill()
        assert (request.next_token, request.answer.token_ids, request.answer.text()) == (None, [], "")
        assert (request.is_prefill_done, request.answer.is_done) == (False, False)
    assert draws == []
    request.try_prefill()
    positions = [position for _, position in draws]
    assert positions == [9], "one draw, at the position behind the 9 tokens of the prompt"
    assert (request.is_prefill_done, len(request.answer.token_ids)) == (True, 1)


@pytest.mark.parametrize("length", [1, 4, 9])
def test_chunked_prefill_cannot_go_on_after_the_end(llm, length):
    model = FakeModel()
    request = llm.Request(model, TOKENIZER, text_of(length), 4)
    while not request.is_prefill_done:
        request.try_prefill()
    num_calls, tokens = len(model.calls), list(request.answer.token_ids)
    with pytest.raises(ValueError):
        request.try_prefill()
    assert (len(model.calls), request.offset, request.answer.token_ids) == (num_calls, length, tokens)


@pytest.mark.parametrize("config", [QWEN3, QWEN2], ids=lambda config: config.model_type)
@pytest.mark.parametrize("step", [1, 7, 32, 33, UNCHUNKED])
def test_chunked_prefill_stores_what_one_pass_stores(llm, config, step):
    model, prompt = toy_model(llm, config), random_tokens(50, 1, 65)
    whole = model.create_kv_cache()
    logits = model(prompt, 0, whole)
    request = llm.Request(model, TOKENIZER, prompt[0].tolist(), step)
    seen = []
    request.sample = lambda row, position: seen.append(row) or mx.argmax(row, axis=-1)
    while not request.is_prefill_done:
        request.try_prefill()
    for layer, (mine, target) in enumerate(zip(request.kv_cache, whole, strict=True)):
        assert_close(mine.fetch()[0], target.fetch()[0], F32_MODEL, what=f"keys of layer {layer}")
        assert_close(mine.fetch()[1], target.fetch()[1], F32_MODEL, what=f"values of layer {layer}")
    assert_close(seen[0], logits[:, -1], F32_MODEL, legend="[1, V]", what="the logits after the prompt")


# The stream of one prompt


def streamed(llm, model, prompt, sampling=None, **settings):
    settings = {"async_scheduling": False, **settings}
    return llm.stream_generate(model, TOKENIZER, prompt, sampling or SamplingParams(max_tokens=3), **settings)


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


def test_stream_yields_as_it_computes(llm):
    model = FakeModel()
    events = streamed(llm, model, text_of(10), prefill_step=4)
    for num_calls in (1, 2, 3, 3, 4, 5, 5):
        next(events)
        assert len(model.calls) == num_calls


@pytest.mark.parametrize("num_events", [1, 3, 5])
def test_stream_that_is_closed_gives_its_memory_back(llm, num_events):
    model = FakeModel()
    events = streamed(llm, model, text_of(10), prefill_step=4)
    for _ in range(num_events):
        next(events)
    assert live_requests(model) == 1
    events.close()
    assert live_requests(model) == 0


@pytest.mark.parametrize(
    ("prompt", "settings"), [("", {}), ("abc", {"max_seq_len": 2}), ("abc", {"prefill_step": 0})]
)
def test_stream_rejects_what_it_cannot_serve(llm, prompt, settings):
    with pytest.raises(UserError):
        list(streamed(llm, FakeModel(), prompt, **settings))
