"""Day 2.6: the life of a request."""

import mlx.core as mx
import numpy as np
import pytest
from tests.helpers.fakes import FakeClock, FakeModel
from tests.helpers.toy import EOS, SECOND_EOS, ByteTokenizer, random_array

from tiny_llm_lab.types import DoneEvent, SamplingParams, TokenEvent, UserError

TOKENIZER = ByteTokenizer()


def request_for(llm, prompt="hello", model=None, max_seq_len=None, clock=None, idx=0, **sampling):
    """A request whose prompt counts as computed, so that tokens can be given to it by hand."""
    request = llm.Request(
        model or FakeModel(),
        TOKENIZER,
        prompt,
        128,
        idx,
        max_seq_len=max_seq_len,
        sampling=SamplingParams(**sampling),
        clock=clock or FakeClock(),
    )
    request.offset = len(request.prefill_tokens)
    return request


def feed(request, tokens):
    """The first token comes from prefill, the rest from decode steps; stops when the request does."""
    for token in tokens:
        if request.is_done:
            break
        (request.decode_done if request.token_ids else request.accept)(token)
    return request


@pytest.mark.task("2.6.3")
def test_new_request_has_computed_nothing(llm):
    model = FakeModel()
    request = llm.Request(model, TOKENIZER, "hello", 64, 3, max_seq_len=100)
    assert (request.prefill_tokens, request.prefill_max_step, request.prompt_idx) == (list(b"hello"), 64, 3)
    assert (request.max_seq_len, request.sampling) == (100, SamplingParams())
    assert (request.offset, request.next_token, request.token_ids) == (0, None, [])
    assert (request.finish_reason, request.is_done, request.is_prefill_done) == (None, False, False)
    assert (request.text(), request.take_events()) == ("", [])
    assert [layer.offset for layer in request.kv_cache] == [0] * model.config.num_hidden_layers
    assert model.calls == []


@pytest.mark.task("2.6.3")
def test_request_takes_token_ids_as_they_are(llm):
    tokens = [5, EOS, 7]
    request = llm.Request(FakeModel(), TOKENIZER, tokens)
    assert request.prefill_tokens == [5, EOS, 7]
    assert request.max_seq_len == FakeModel().config.max_position_embeddings
    request.prefill_tokens.append(1)
    assert tokens == [5, EOS, 7]


@pytest.mark.task("2.6.3")
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


@pytest.mark.task("2.6.3")
def test_request_notes_its_tokens(llm):
    request = request_for(llm)
    assert request.is_prefill_done
    request.accept(ord("x"))
    assert (request.next_token, request.token_ids, request.offset) == (ord("x"), [ord("x")], 5)
    request.decode_done(ord("y"))
    assert (request.next_token, request.token_ids, request.offset) == (ord("y"), list(b"xy"), 6)
    assert (request.text(), request.is_done) == ("xy", False)


@pytest.mark.task("2.6.3")
@pytest.mark.parametrize("end", [EOS, SECOND_EOS])
def test_request_ends_before_either_end_token(llm, end):
    request = feed(request_for(llm), [*b"xy", end])
    assert (request.finish_reason, request.token_ids, request.text()) == ("stop", list(b"xy"), "xy")
    with pytest.raises(ValueError):
        request.accept(ord("z"))
    with pytest.raises(ValueError):
        request.decode_done(ord("z"))
    assert request.token_ids == list(b"xy")


@pytest.mark.task("2.6.3")
def test_request_may_end_with_its_first_token(llm):
    request = feed(request_for(llm), [EOS])
    assert (request.is_done, request.finish_reason, request.token_ids) == (True, "stop", [])
    events = request.take_events()
    assert [type(event) for event in events] == [DoneEvent]
    assert events[0].completion == request.completion()
    assert request.completion().timing.ttft_s is None


@pytest.mark.task("2.6.3")
def test_request_can_ignore_end_tokens(llm):
    request = feed(request_for(llm, ignore_eos=True, max_tokens=4), [ord("x"), EOS, SECOND_EOS, ord("y")])
    assert (request.finish_reason, request.token_ids) == ("length", [ord("x"), EOS, SECOND_EOS, ord("y")])
    assert request.text() == "xy"


@pytest.mark.task("2.6.3")
@pytest.mark.parametrize("max_tokens", [1, 3])
def test_request_ends_after_max_tokens(llm, max_tokens):
    request = feed(request_for(llm, max_tokens=max_tokens), b"abcdefgh")
    assert (request.finish_reason, len(request.token_ids)) == ("length", max_tokens)


@pytest.mark.task("2.6.3")
@pytest.mark.parametrize(("max_seq_len", "num_tokens"), [(5, 1), (6, 2), (9, 5)])
def test_request_ends_when_the_next_token_could_not_be_stored(llm, max_seq_len, num_tokens):
    # Five prompt tokens; the token that fills the last place is followed by one that needs none.
    request = feed(request_for(llm, "hello", max_seq_len=max_seq_len), b"abcdefghij")
    assert (request.finish_reason, len(request.token_ids)) == ("length", num_tokens)
    assert request.offset == max_seq_len


@pytest.mark.task("2.6.3")
def test_request_ends_at_a_stop_string_across_tokens(llm):
    request = feed(request_for(llm, stop=("END", "zz")), b"a b END more")
    assert (request.finish_reason, request.text()) == ("stop", "a b ")
    assert request.token_ids == list(b"a b END")


@pytest.mark.task("2.6.3")
def test_stop_string_at_the_last_allowed_token_is_a_stop(llm):
    request = feed(request_for(llm, stop=("END",), max_tokens=4), b"aEND")
    assert (request.finish_reason, request.text()) == ("stop", "a")


@pytest.mark.task("2.6.3")
def test_request_releases_held_back_text_at_the_end(llm):
    request = feed(request_for(llm, stop=("END",), max_tokens=3), b"aEN")
    assert (request.finish_reason, request.text()) == ("length", "aEN")
    events = request.take_events()
    assert [type(event) for event in events] == [TokenEvent] * 4 + [DoneEvent]
    assert [(event.token_id, event.text) for event in events[:4]] == [
        (97, "a"),
        (69, ""),
        (78, ""),
        (None, "EN"),
    ]


@pytest.mark.task("2.6.3")
def test_request_does_not_lose_an_unfinished_character(llm):
    request = feed(request_for(llm), [*"né".encode(), "é".encode()[0], EOS])
    assert request.text() == "né\N{REPLACEMENT CHARACTER}"
    events = request.take_events()
    assert [event.text for event in events[:-1]] == ["n", "", "é", "", "\N{REPLACEMENT CHARACTER}"]
    assert events[-1].completion.text == request.text()


@pytest.mark.task("2.6.3")
def test_request_hands_every_event_out_once(llm):
    request = request_for(llm, idx=4, max_tokens=3)
    request.accept(ord("x"))
    first = request.take_events()
    assert [(event.prompt_idx, event.token_id, event.text) for event in first] == [(4, ord("x"), "x")]
    assert request.take_events() == []
    feed(request, b"yz")
    later = request.take_events()
    assert [type(event) for event in later] == [TokenEvent, TokenEvent, DoneEvent]
    assert "".join(event.text for event in first + later[:-1]) == request.text() == "xyz"
    assert request.take_events() == []


@pytest.mark.task("2.6.3")
def test_request_sums_itself_up(llm):
    clock = FakeClock(start=10.0)
    request = request_for(llm, "hello", clock=clock, idx=7, max_tokens=3)
    with pytest.raises(ValueError):
        request.completion()
    for seconds, token in ((2.0, "x"), (0.5, "y"), (0.25, "z")):
        clock.now += seconds
        feed(request, token.encode())
    done = request.completion()
    assert (done.prompt_idx, done.num_prompt_tokens, done.token_ids) == (7, 5, tuple(b"xyz"))
    assert (done.text, done.finish_reason, done.error) == ("xyz", "length", None)
    assert (done.timing.arrival_s, done.timing.token_s) == (10.0, (12.0, 12.5, 12.75))
    assert (done.timing.ttft_s, done.timing.itl_s) == (2.0, [0.5, 0.25])


@pytest.mark.task("2.6.3")
def test_request_may_have_arrived_earlier(llm):
    clock = FakeClock(start=10.0)
    request = llm.Request(FakeModel(), TOKENIZER, "hi", arrival_s=8.5, clock=clock)
    request.offset = 2
    feed(request, [ord("x"), EOS])
    assert request.completion().timing.ttft_s == 1.5


@pytest.mark.task("2.6.3")
def test_request_gives_its_cache_back(llm):
    model = FakeModel(num_layers=3)
    request = llm.Request(model, TOKENIZER, "hello")
    model(mx.array([request.prefill_tokens]), 0, request.kv_cache, logits_to_keep=1)
    assert all(cache.holds_memory for cache in model.caches)
    request.release()
    request.release()
    assert len(model.caches) == 3
    assert not any(cache.holds_memory for cache in model.caches)


@pytest.mark.task("2.6.3")
def test_request_samples_with_its_own_settings(llm):
    logits = random_array(40, 1, 258) * 2
    settings = {"temperature": 0.8, "top_k": 40, "top_p": 0.9, "min_p": 0.02, "seed": 5}
    request = request_for(llm, **settings)
    sample = llm.Sampler(SamplingParams(**settings))
    got = [request.sample(logits, position).item() for position in range(12)]
    assert got == [sample(logits, position).item() for position in range(12)]
    assert len(set(got)) > 1
    assert request_for(llm).sample(logits, 3).item() == int(np.argmax(np.array(logits)))
