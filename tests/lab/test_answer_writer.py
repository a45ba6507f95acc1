"""Answers on a terminal: pieces in, lines that break between words out."""

import io
import random

import pytest

from tiny_llm_lab.runtime.console import answer_writer
from tiny_llm_lab.runtime.console.answer_writer import AnswerWriter


def written(text, width, sizes):
    """What a terminal of `width` columns gets when `text` comes in pieces of 1 to 9 characters."""
    stream = io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(answer_writer, "terminal_width", lambda each: width)
        writer = AnswerWriter(stream)
        while text:
            size = sizes.randint(1, 9)
            writer.write(text[:size])
            text = text[size:]
        writer.end()
    return stream.getvalue()


def test_words_stay_whole_and_no_character_is_lost():
    chance = random.Random(0)
    for width in (20, 41, 80):
        for _ in range(100):
            words = ["x" * chance.randint(1, 12) for _ in range(60)]
            text = "".join(word + chance.choice([" ", " ", "  ", "\n", "\n\n"]) for word in words) + "end"
            shown = written(text, width, chance)
            assert max(len(line.rstrip()) for line in shown.splitlines()) <= width
            assert shown.split() == text.split()
            for line in text.split("\n"):  # a line that fits stays as it is, blanks within it too
                assert len(line.rstrip()) > width or line.rstrip() in shown


@pytest.mark.parametrize("text", ["", "one two  three\n\n  four" * 20])
def test_a_pipe_gets_the_answer_as_it_is(text):
    assert written(text, None, random.Random(0)) == text + "\n"


def test_a_character_of_two_columns_counts_as_two():
    assert written("abcdef 日本語", 12, random.Random(0)) == "abcdef\n日本語\n"


def test_a_word_wider_than_the_terminal_stays_whole():
    assert written("a " + "b" * 30 + " c", 20, random.Random(0)) == "a\n" + "b" * 30 + "\nc\n"
