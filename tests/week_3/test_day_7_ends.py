"""Day 3.7: where an answer ends, and what is refused before it begins."""

from dataclasses import replace

import pytest
from tests.helpers.phases import arrival_of
from tests.helpers.serving import make_engine
from tests.helpers.toy import EOS, VOCAB, ByteTokenizer, random_tokens

from tiny_llm_lab.types import Prompt, SamplingParams, StructuredOutputs, TokenEvent, UserError

pytestmark = pytest.mark.task("3.7.3")
PROMPT = random_tokens(3, 40).tolist()
LONG = SamplingParams(max_tokens=24, ignore_eos=True)


# Where an answer ends


def text_of(llm, sampling, tokens):
    answer = llm.Answer(ByteTokenizer(), arrival_of([1], sampling), [1], 100)
    for token in tokens:
        if not answer.is_done:
            answer.accept(token)
    return answer


def test_stop_tokens_end_an_answer_and_are_not_kept(llm):
    for sampling in (
        SamplingParams(stop_token_ids=(66,)),
        SamplingParams(stop_token_ids=(66,), ignore_eos=True),
    ):
        answer = text_of(llm, sampling, b"AABA")
        assert (answer.token_ids, answer.finish_reason) == ([65, 65], "stop")
    assert text_of(llm, SamplingParams(ignore_eos=True), [65, EOS, 65]).token_ids == [65, EOS, 65]


@pytest.mark.parametrize(
    ("min_tokens", "stop", "text"),
    [
        (0, ("ab",), ""),
        (2, ("ab", "d"), "abc"),
        (3, ("ab", "bc", "abx", "a"), "abcd"),
        (4, ("bx",), "abcda"),
        (5, ("ab", "bcd"), "abcd"),
        (6, ("ab",), "abcdabxx"),
    ],
)
def test_no_stop_string_ends_within_the_first_tokens(llm, min_tokens, stop, text):
    answer = text_of(llm, SamplingParams(stop=stop, min_tokens=min_tokens), b"abcdabxx")
    if not answer.is_done:
        answer.abort()
    assert answer.text() == text
    events = [event.text for event in answer.take_events() if isinstance(event, TokenEvent)]
    assert "".join(events) == text


@pytest.mark.parametrize(
    ("is_thinking", "said", "text"),
    [
        (None, b"<think>ab", "<think>"),
        (True, b"ab, ab</think>\n\nc ab", "ab, ab</think>\n\nc "),
        (True, b"ab</think> ab", "ab</think> "),
        (True, b"ab</think>\n\n", "ab</think>\n\n"),
        (False, b"<think>ab</think>ab", "<think>ab</think>"),
        (False, b"  <think>ab", "  <think>ab"),
        (False, b"c ab", "c "),
        (False, b"ab", ""),
    ],
)
def test_no_stop_string_ends_in_thoughts(llm, is_thinking, said, text):
    stop = ("ab",) if b"\n" not in said else ("ab", "\n\n")
    answer = text_of(llm, SamplingParams(stop=stop, is_thinking=is_thinking), said)
    if not answer.is_done:
        answer.abort()
    assert answer.text() == text


def test_held_back_text_within_min_tokens_may_only_begin_a_stop_string(llm):
    """Held back for "abc", the "b" of the first tokens ends no answer, the next "b" does."""
    answer = text_of(llm, SamplingParams(stop=("abc", "b"), min_tokens=2), b"abzzb")
    assert (answer.text(), answer.finish_reason) == ("abzz", "stop")
    assert text_of(llm, SamplingParams(stop=("abc", "b"), min_tokens=2), b"abc").text() == ""


# What is refused


@pytest.mark.parametrize(
    ("sampling", "complaint"),
    [
        (SamplingParams(logit_bias={VOCAB: 1.0}), "logit_bias"),
        (SamplingParams(stop_token_ids=(VOCAB,)), "stop_token_ids"),
        (SamplingParams(structured_outputs=StructuredOutputs(regex="a")), "processor"),
    ],
)
def test_a_request_that_could_not_be_honoured_is_refused(llm, model, sampling, complaint):
    engine = make_engine(llm, model)
    with pytest.raises(UserError, match=complaint):
        engine.add("a", PROMPT, sampling)
    assert not engine.has_requests


@pytest.mark.parametrize(
    "asked",
    [
        {"logit_bias": {1: 1.0}},
        {"min_tokens": 1},
        {"presence_penalty": 1},
        {"prompt_logprobs": 1},
        {"structured_outputs": StructuredOutputs(regex="a")},
    ],
    ids=lambda each: next(iter(each)),
)
def test_the_loops_of_week_2_name_the_engine(llm, model, asked):
    sampling = replace(LONG, **asked)
    with pytest.raises(UserError, match="engine"):
        list(llm.stream_generate(model, ByteTokenizer(), PROMPT, sampling))
    (done,) = llm.batch_generate(
        model, ByteTokenizer(), [Prompt(PROMPT, sampling)], on_event=lambda event: None
    )
    assert "engine" in done.error


def test_processors_need_the_engine(llm, model):
    prompt = Prompt(PROMPT, LONG, processors=(lambda logits, prompt, answer: logits,))
    (done,) = llm.batch_generate(model, ByteTokenizer(), [prompt], on_event=lambda event: None)
    assert "engine" in done.error
