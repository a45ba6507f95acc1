"""Day 2.6: the life of a request."""

import mlx.core as mx
import numpy as np
import pytest
from tests.helpers.fakes import FakeClock, FakeModel
from tests.helpers.phases import arrival_of
from tests.helpers.toy import EOS, ByteTokenizer, random_array

from tiny_llm_lab.types import SamplingParams, UserError, Wanted

pytestmark = pytest.mark.task("2.6.3")

TOKENIZER = ByteTokenizer()


def request_for(llm, prompt="hello", max_seq_len=None, clock=None, idx=0, arrival_s=0.0, **sampling):
    """A request whose prompt counts as computed, so that tokens can be given to it by hand."""
    arrival = arrival_of(prompt, SamplingParams(**sampling), idx, arrival_s)
    clock = clock or FakeClock()
    request = llm.Request(FakeModel(), TOKENIZER, arrival, max_seq_len=max_seq_len, clock=clock)
    request.offset = len(request.prefill_tokens)
    return request


def feed(request, tokens):
    """The first token comes from prefill, the rest from decode steps; stops when the answer does."""
    for token in tokens:
        if request.answer.is_done:
            break
        (request.decode_done if request.answer.token_ids else request.answer.accept)(token)
    return request


def test_new_request_has_computed_nothing(llm):
    model = FakeModel()
    request = llm.Request(model, TOKENIZER, arrival_of("hello", prompt_idx=3), 64, max_seq_len=100)
    assert (request.prefill_tokens, request.prefill_max_step, request.prompt_idx) == (list(b"hello"), 64, 3)
    assert (request.answer.max_seq_len, request.answer.sampling) == (100, SamplingParams())
    assert (request.offset, request.next_token, request.is_prefill_done) == (0, None, False)
    assert (request.answer.is_done, request.answer.take_events()) == (False, [])
    assert [layer.offset for layer in request.kv_cache] == [0] * model.config.num_hidden_layers
    assert model.calls == []


def test_request_takes_token_ids_as_they_are(llm):
    tokens = [5, EOS, 7]
    request = llm.Request(FakeModel(), TOKENIZER, tokens)
    assert request.prefill_tokens == [5, EOS, 7]
    assert request.answer.max_seq_len == FakeModel().config.max_position_embeddings
    request.prefill_tokens.append(1)
    assert tokens == [5, EOS, 7]


@pytest.mark.parametrize(
    ("prompt", "step", "max_seq_len"),
    [
        ("", 128, None),
        ([], 128, None),
        ("abcdef", 128, 5),
        ([97, 258], 128, None),
        ([-1], 128, None),
        ("abc", 0, None),
        ("abc", -1, 5),
        ("abc", 128, 0),
        ("abc", 128, 5000),
    ],
)
def test_request_rejects_bad_input(llm, prompt, step, max_seq_len):
    with pytest.raises(UserError):
        llm.Request(FakeModel(), TOKENIZER, prompt, step, max_seq_len=max_seq_len)


def test_request_notes_its_tokens(llm):
    request = request_for(llm)
    assert request.is_prefill_done
    request.answer.accept(ord("x"))
    assert (request.next_token, request.answer.token_ids, request.offset) == (ord("x"), [ord("x")], 5)
    request.decode_done(ord("y"))
    assert (request.next_token, request.answer.token_ids, request.offset) == (ord("y"), list(b"xy"), 6)
    assert (request.answer.text(), request.answer.is_done) == ("xy", False)


@pytest.mark.parametrize(("max_seq_len", "num_tokens"), [(5, 1), (6, 2), (9, 5)])
def test_request_ends_when_the_next_token_could_not_be_stored(llm, max_seq_len, num_tokens):
    # Five prompt tokens; the token that fills the last place is followed by one that needs none.
    request = feed(request_for(llm, "hello", max_seq_len=max_seq_len), b"abcdefghij")
    assert (request.answer.finish_reason, len(request.answer.token_ids)) == ("length", num_tokens)
    assert request.offset == max_seq_len


def test_a_prompt_that_is_no_arrival_arrives_now(llm):
    request = llm.Request(FakeModel(), TOKENIZER, "hi", clock=FakeClock(start=8.0))
    assert (request.prompt_idx, request.answer.last_token_s) == (0, 8.0)


def test_the_answer_to_an_arrival_has_its_number_and_its_time(llm):
    clock = FakeClock(start=10.0)
    request = request_for(llm, "hi", clock=clock, idx=7, arrival_s=8.5, max_tokens=2)
    feed(request, b"xy")
    done = request.answer.completion()
    assert (request.prompt_idx, done.prompt_idx, done.num_prompt_tokens, done.text) == (7, 7, 2, "xy")
    assert (done.timing.arrival_s, done.timing.ttft_s) == (8.5, 1.5)
    with pytest.raises(ValueError):
        request.decode_done(ord("z"))


def test_request_gives_its_cache_back(llm):
    model = FakeModel(num_layers=3)
    request = llm.Request(model, TOKENIZER, "hello")
    model(mx.array([request.prefill_tokens]), 0, request.kv_cache, wanted=Wanted(last=1))
    assert all(cache.holds_memory for cache in model.caches)
    request.release()
    request.release()
    assert len(model.caches) == 3
    assert not any(cache.holds_memory for cache in model.caches)


def test_request_samples_with_its_own_settings(llm):
    logits = random_array(40, 1, 258) * 2
    settings = {"temperature": 0.8, "top_k": 40, "top_p": 0.9, "min_p": 0.02, "seed": 5}
    request = request_for(llm, **settings)
    sample = llm.Sampler(SamplingParams(**settings))
    got = [request.sample(logits, position).item() for position in range(12)]
    assert got == [sample(logits, position).item() for position in range(12)]
    assert len(set(got)) > 1
    assert request_for(llm).sample(logits, 3).item() == int(np.argmax(np.array(logits)))
