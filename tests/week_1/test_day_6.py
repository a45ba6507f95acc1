"""Day 1.6: text from tokens, and the plain loop."""

import mlx.core as mx
import pytest
from tests.helpers.fakes import FakeModel
from tests.helpers.toy import EOS, SECOND_EOS, ByteDetokenizer, ByteTokenizer, toy_model

# The task of each test that names no other.
pytestmark = pytest.mark.task("1.6.1")

TOKENIZER = ByteTokenizer()


def pushed(stream, text):
    """The pieces that come out, one per byte."""
    return [stream.push(byte) for byte in text.encode()]


def test_text_comes_out_at_once(llm):
    stream = llm.TextStream(ByteDetokenizer())
    assert stream.text == ""
    assert pushed(stream, "abc") == ["a", "b", "c"]
    assert (stream.text, stream.stopped, stream.finish()) == ("abc", False, "")
    assert stream.text == "abc"


def test_text_waits_for_whole_characters(llm):
    stream = llm.TextStream(ByteDetokenizer())
    assert pushed(stream, "é€") == ["", "é", "", "", "€"]
    assert stream.text == "é€"


def test_text_does_not_lose_an_unfinished_character(llm):
    stream = llm.TextStream(ByteDetokenizer())
    stream.push(ord("a"))
    stream.push("é".encode()[0])
    assert stream.text == "a"
    assert stream.finish() == "\N{REPLACEMENT CHARACTER}"
    assert stream.text == "a\N{REPLACEMENT CHARACTER}"


def test_stop_string_inside_one_token(llm):
    class Words(ByteDetokenizer):
        def add_token(self, token):
            for byte in [b"one ", b"two STOP three", b"four"][token]:
                super().add_token(byte)

    stream = llm.TextStream(Words(), ["STOP"])
    assert [stream.push(0), stream.push(1), stream.push(2)] == ["one ", "two ", ""]
    assert stream.stopped
    assert (stream.text, stream.finish()) == ("one two ", "")


def test_stop_string_across_tokens(llm):
    stream = llm.TextStream(ByteDetokenizer(), ["END"])
    assert pushed(stream, "a b") == ["a", " ", "b"]
    assert pushed(stream, "END") == ["", "", ""]
    assert (stream.stopped, stream.text) == (True, "a b")
    assert pushed(stream, "more") == [""] * 4
    assert (stream.finish(), stream.text) == ("", "a b")


def test_long_stop_string_across_tokens(llm):
    stream = llm.TextStream(ByteDetokenizer(), ["<|the end|>"])
    assert pushed(stream, "a<|the end|>") == ["a", *[""] * 11]
    assert (stream.stopped, stream.text) == (True, "a")


def test_text_that_only_looked_like_a_stop_string_follows(llm):
    stream = llm.TextStream(ByteDetokenizer(), ["END"])
    assert pushed(stream, "ENx") == ["", "", "ENx"]
    assert not stream.stopped
    # The new beginning is held, the old one is not.
    assert pushed(stream, "EEN") == ["", "E", ""]
    assert pushed(stream, "D") == [""]
    assert (stream.stopped, stream.text) == (True, "ENxE")


@pytest.mark.parametrize(
    ("stop", "text"), [("aab", "aab"), ("aab", "aaab"), ("\n\nQ", "\n\n\nQ"), ("aba", "ababa")]
)
def test_the_longest_beginning_of_a_stop_string_is_held(llm, stop, text):
    stream, want = llm.TextStream(ByteDetokenizer(), [stop]), text[: text.find(stop)]
    pieces = pushed(stream, text)
    assert (stream.text, stream.stopped) == (want, True), (
        f"{text!r} has the stop string {stop!r} and gave the pieces {pieces}: of several ends that "
        "may begin it the longest has to be held back"
    )


def test_held_text_is_released_at_the_end(llm):
    stream = llm.TextStream(ByteDetokenizer(), ["END"])
    assert pushed(stream, "aEN") == ["a", "", ""]
    assert stream.text == "a"
    assert (stream.finish(), stream.text, stream.stopped) == ("EN", "aEN", False)


@pytest.mark.parametrize("stops", [["b", "ab"], ["ab", "b"], ["abc", "b"]])
def test_the_first_stop_string_to_appear_wins(llm, stops):
    stream = llm.TextStream(ByteDetokenizer(), stops)
    pieces = pushed(stream, "xabc")
    text = "x" if "ab" in stops else "xa"
    what = f"'xabc' with the stop strings {stops} gave the pieces {pieces}: pieces joined, text, stopped"
    assert ("".join(pieces), stream.text, stream.stopped) == (text, text, True), what


def test_pieces_join_to_the_text_whatever_the_stop_strings(llm):
    text = "tototototo"
    for stop in ("tototox", "x", "ooo", "otox"):
        stream = llm.TextStream(ByteDetokenizer(), [stop])
        pieces = [*pushed(stream, text), stream.finish()]
        what = f"{text!r} has no {stop!r}, so the pieces {pieces} must join to all of it, and so must `text`"
        assert ("".join(pieces), stream.text) == (text, text), what


def test_stop_string_that_only_the_end_reveals(llm):
    # The unfinished character becomes text at the end, and text may hold a stop string.
    stream = llm.TextStream(ByteDetokenizer(), ["a\N{REPLACEMENT CHARACTER}"])
    assert stream.push(ord("a")) == ""
    assert stream.push("é".encode()[0]) == ""
    assert (stream.finish(), stream.text, stream.stopped) == ("", "", True)


def greedy(logits, position):
    return mx.argmax(logits, axis=-1)


@pytest.mark.task("1.6.2")
@pytest.mark.parametrize("prompt", ["a", "hello", "a longer prompt, with commas"])
def test_simple_generate_continues_from_all_tokens_so_far(llm, prompt):
    model = FakeModel()
    want = model.answer_to(prompt.encode(), 6)
    events = list(llm.simple_generate(model, TOKENIZER, prompt, greedy, max_tokens=6))
    assert [event.token_id for event in events] == want, "yours == the 6 tokens that follow from all before"
    assert "".join(event.text for event in events) == bytes(want).decode()


@pytest.mark.task("1.6.2")
def test_simple_generate_runs_the_model_on_everything_each_time(llm):
    model = FakeModel()
    list(llm.simple_generate(model, TOKENIZER, "abc", greedy, max_tokens=4))
    assert [call.length for call in model.calls] == [3, 4, 5, 6], "tokens that the model is shown by step"
    assert [call.tokens[0][:3] for call in model.calls] == [[97, 98, 99]] * 4
    assert model.caches == [], "no cache is needed before day 2.1"


@pytest.mark.task("1.6.2")
@pytest.mark.parametrize("end", [EOS, SECOND_EOS])
def test_simple_generate_ends_before_either_end_token(llm, end):
    model = FakeModel({"ab": [*b"xyz", end, *b"more"]})
    events = list(llm.simple_generate(model, TOKENIZER, "ab", greedy))
    assert [event.token_id for event in events] == list(b"xyz")


@pytest.mark.task("1.6.2")
def test_simple_generate_can_end_at_once(llm):
    assert list(llm.simple_generate(FakeModel({"ab": [EOS]}), TOKENIZER, "ab", greedy)) == []


@pytest.mark.task("1.6.2")
def test_simple_generate_streams(llm):
    model = FakeModel()
    events = llm.simple_generate(model, TOKENIZER, "ab", greedy, max_tokens=100)
    next(events)
    assert len(model.calls) == 1, "passes of the model before the first token is out"
    next(events)
    assert len(model.calls) == 2, "passes of the model before the second token is out"


@pytest.mark.task("1.6.2")
@pytest.mark.parametrize("max_tokens", [2, 100], ids=["by_max_tokens", "by_an_end_token"])
def test_simple_generate_releases_an_unfinished_character_at_the_end(llm, max_tokens):
    first = "€".encode()[0]
    model = FakeModel({"ab": [120, first, EOS]})
    events = list(llm.simple_generate(model, TOKENIZER, "ab", greedy, max_tokens=max_tokens))
    assert [event.token_id for event in events] == [120, first, None], "one event more for the text held back"
    assert [event.text for event in events] == ["x", "", "\N{REPLACEMENT CHARACTER}"]


@pytest.mark.task("1.6.2")
def test_simple_generate_uses_the_sampler_on_the_last_row(llm):
    shapes = []

    def least_likely(logits, position):
        shapes.append(logits.shape)
        return mx.argmin(logits, axis=-1)

    events = list(
        llm.simple_generate(FakeModel({"ab": [*b"xy"]}), TOKENIZER, "ab", least_likely, max_tokens=2)
    )
    assert [event.token_id for event in events] == [0, 0], "max_tokens is 2, and 0 is what the sampler takes"
    assert shapes == [(1, 258)] * 2


@pytest.mark.task("1.6.2")
def test_simple_generate_tells_the_sampler_how_many_tokens_there_are(llm):
    positions = []

    def noting(logits, position):
        positions.append(position)
        return mx.argmax(logits, axis=-1)

    list(llm.simple_generate(FakeModel(), TOKENIZER, "abc", noting, max_tokens=3))
    assert positions == [3, 4, 5], "a position is the number of tokens so far, prompt included"


@pytest.mark.task("1.6.2")
def test_simple_generate_rejects_an_empty_prompt(llm):
    with pytest.raises(ValueError):
        list(llm.simple_generate(FakeModel(), TOKENIZER, "", greedy))


@pytest.mark.task("1.6.2")
def test_simple_generate_on_a_real_qwen(llm):
    model = toy_model(llm)
    tokens = list(b"once upon")
    for _ in range(5):
        tokens.append(int(mx.argmax(model(mx.array([tokens]))[0, -1]).item()))
    events = llm.simple_generate(model, TOKENIZER, "once upon", greedy, max_tokens=5)
    got = [event.token_id for event in events if event.token_id is not None]
    assert got == tokens[9:], "yours == the 5 likeliest tokens, one after the other"
