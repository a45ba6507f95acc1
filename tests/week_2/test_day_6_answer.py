"""Day 2.6: an answer by itself. Tokens are given to it by hand; no model and no cache take part."""

import pytest
from tests.helpers.fakes import FakeClock
from tests.helpers.phases import arrival_of
from tests.helpers.toy import EOS, SECOND_EOS, ByteTokenizer

from tiny_llm_lab.types import Completion, DoneEvent, PrefillEvent, SamplingParams, Timing, TokenEvent

pytestmark = pytest.mark.task("2.6.2")


def answer_to(llm, prompt=b"hello", max_seq_len=100, *, arrival_s=0.0, clock=None, idx=0, **sampling):
    """An answer of which no token is known yet."""
    arrival = arrival_of(prompt, SamplingParams(**sampling), idx, arrival_s)
    return llm.Answer(ByteTokenizer(), arrival, list(prompt), max_seq_len, clock or FakeClock())


def feed(answer, tokens):
    """Give tokens to the answer, as far as it takes any."""
    for token in tokens:
        if not answer.is_done:
            answer.accept(token)
    return answer


def test_a_new_answer_is_empty(llm):
    answer = answer_to(llm, b"hello", 64, idx=3, temperature=0.5)
    assert (answer.prompt_token_ids, answer.token_ids, answer.max_seq_len) == (list(b"hello"), [], 64)
    assert (answer.prompt_idx, answer.sampling) == (3, SamplingParams(temperature=0.5))
    assert (answer.is_done, answer.finish_reason, answer.next_token) == (False, None, None)
    assert (answer.num_tokens, answer.text(), answer.take_events()) == (5, "", [])


def test_an_answer_counts_its_tokens(llm):
    answer = feed(answer_to(llm), b"abc")
    assert (answer.token_ids, answer.next_token, answer.text()) == (list(b"abc"), ord("c"), "abc")
    assert answer.num_tokens == 8, "five of the prompt, three of the answer"


def test_an_answer_does_not_change_the_prompt_of_its_caller(llm):
    prompt = list(b"hello")
    answer = llm.Answer(ByteTokenizer(), arrival_of(prompt), prompt, 100)
    prompt.append(0)
    assert answer.prompt_token_ids == list(b"hello")


# Rules that end it


@pytest.mark.parametrize("end", [EOS, SECOND_EOS])
@pytest.mark.parametrize("tokens", [b"", b"x", b"xyz"])
def test_either_end_of_sequence_token_stops_it_and_is_not_kept(llm, end, tokens):
    answer = feed(answer_to(llm), [*tokens, end])
    assert (answer.finish_reason, answer.token_ids) == ("stop", list(tokens))


def test_end_of_sequence_tokens_can_be_ignored(llm):
    answer = feed(answer_to(llm, ignore_eos=True, max_tokens=4), [ord("x"), EOS, SECOND_EOS, ord("y")])
    assert (answer.finish_reason, answer.token_ids) == ("length", [ord("x"), EOS, SECOND_EOS, ord("y")])
    assert answer.text() == "xy"


def test_a_stop_string_ends_it_and_is_not_text(llm):
    answer = feed(answer_to(llm, stop=("END", "zz")), b"a b END more")
    assert (answer.finish_reason, answer.text()) == ("stop", "a b ")
    assert answer.token_ids == list(b"a b END"), "the tokens of the stop string were sampled all the same"


@pytest.mark.parametrize("max_tokens", [1, 2, 5])
def test_max_tokens_ends_it(llm, max_tokens):
    answer = feed(answer_to(llm, max_tokens=max_tokens), b"abcdefgh")
    assert (answer.finish_reason, len(answer.token_ids)) == ("length", max_tokens)


def test_a_stop_string_that_ends_with_the_last_allowed_token_is_a_stop(llm):
    answer = feed(answer_to(llm, stop=("END",), max_tokens=4), b"aEND")
    assert (answer.finish_reason, answer.text()) == ("stop", "a")


@pytest.mark.parametrize(("max_seq_len", "num_tokens"), [(5, 1), (6, 2), (9, 5)])
def test_max_seq_len_leaves_room_for_a_token_that_is_not_stored(llm, max_seq_len, num_tokens):
    # Five prompt tokens. The newest token of an answer is not in the cache.
    answer = feed(answer_to(llm, b"hello", max_seq_len), b"abcdefgh")
    assert (answer.finish_reason, len(answer.token_ids)) == ("length", num_tokens)
    assert answer.num_tokens == max_seq_len + 1


def test_an_abort_ends_it(llm):
    answer = feed(answer_to(llm, stop=("END",)), b"abE")
    answer.abort()
    assert (answer.finish_reason, answer.token_ids, answer.text()) == ("abort", list(b"abE"), "abE")
    assert answer.completion().finish_reason == "abort"


@pytest.mark.parametrize("end", ["accept", "abort"])
def test_an_ended_answer_takes_no_token_and_no_abort(llm, end):
    answer = feed(answer_to(llm, max_tokens=2), b"ab")
    events = answer.take_events()
    with pytest.raises(ValueError):
        answer.abort() if end == "abort" else answer.accept(ord("c"))
    assert (answer.finish_reason, answer.token_ids) == ("length", list(b"ab"))
    assert [type(event) for event in events] == [TokenEvent, TokenEvent, DoneEvent]
    assert answer.take_events() == [], "an answer ends once"


# Events


def test_the_texts_of_the_events_are_the_answer(llm):
    answer = feed(answer_to(llm, stop=("END",), max_tokens=3), b"aEN")
    *tokens, done = answer.take_events()
    assert [(event.token_id, event.text) for event in tokens] == [(97, "a"), (69, ""), (78, ""), (None, "EN")]
    assert done == DoneEvent(answer.completion()), "the end comes last"
    assert answer.text() == "aEN"


def test_an_unfinished_character_is_told_at_the_end(llm):
    answer = feed(answer_to(llm), [*"né".encode(), "é".encode()[0], EOS])
    *tokens, done = answer.take_events()
    assert [event.text for event in tokens] == ["n", "", "é", "", "\N{REPLACEMENT CHARACTER}"]
    assert done.completion.text == answer.text() == "né\N{REPLACEMENT CHARACTER}"


def test_every_event_is_handed_out_once(llm):
    answer = answer_to(llm, clock=FakeClock(tick=1.0), arrival_s=0.0, idx=4)
    answer.prefilled(3)
    answer.prefilled(5)
    assert answer.take_events() == [PrefillEvent(4, 3, 5, 1.0), PrefillEvent(4, 5, 5, 2.0)]
    answer.accept(ord("a"))
    assert answer.take_events() == [TokenEvent(4, ord("a"), "a", 3.0)]
    assert answer.take_events() == []


# Timing


def test_a_completion_sums_it_up(llm):
    answer = answer_to(llm, clock=FakeClock(tick=1.0), arrival_s=0.5, idx=7, max_tokens=2)
    with pytest.raises(ValueError):
        answer.completion()
    feed(answer, b"ab")
    timing = Timing(0.5, (1.0, 2.0))
    assert answer.completion() == Completion(7, 5, (97, 98), "ab", "length", timing)
    assert answer.completion().timing.ttft_s == 0.5


def test_last_token_s_is_the_time_of_the_newest_token(llm):
    answer = answer_to(llm, clock=FakeClock(tick=1.0), arrival_s=0.5)
    assert answer.last_token_s == 0.5, "the arrival, before the first token"
    for want in (1.0, 2.0, 3.0):  # as when one step brings several tokens
        answer.accept(ord("a"))
        assert answer.last_token_s == want


# Drafts


@pytest.mark.parametrize(
    ("max_seq_len", "max_tokens", "want"),
    [
        (100, None, 95),  # five prompt tokens, and room for the newest one besides
        (6, None, 1),
        (5, None, 0),
        (100, 1, 0),  # the only token needs no draft
        (100, 4, 3),
        (7, 4, 2),
        (100, 100, 95),
    ],
)
def test_drafts_end_where_the_answer_ends(llm, max_seq_len, max_tokens, want):
    answer = answer_to(llm, b"hello", max_seq_len, max_tokens=max_tokens)
    assert answer.max_draft_tokens == want
