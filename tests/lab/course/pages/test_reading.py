"""The words of a page, and the line below its title that says how long it takes to read."""

import io
import json

import pytest

from tiny_llm_lab.course.book.chapters import preprocessor
from tiny_llm_lab.course.book.chapters.reading import count_words, with_reading_time


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Keys, values - and 1,024 queries.", 5),
        ("one ```x``` two", 3),
        ("before\n\n```python\nprint('not read')\n```\n\nafter", 2),
        ("before\n\n| a | b |\n| --- | --- |\n| not | read |\n\nafter", 2),
        ("the `BlockPool.allocate(2, 3)` call", 3),
        ("[day 2.1](week2-01-kv-cache.md) has it", 4),
        ("![not a word of this](figures/a.svg)\n\n*Drawn*", 1),
        ("<!-- not this --><div class='do'>\nWrite it\n</div>", 2),
        ("of $\\frac{q}{k}$ only\n\n$$\na = b\n$$", 2),
        ("<details>\n<summary>Answer</summary>\n\nIt is folded\n</details>", 4),
    ],
)
def test_prose_is_counted_and_folded_answers_are_prose(text: str, words: int) -> None:
    assert count_words(text) == words


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (200, "200 words: 1 minute to read"),
        (299, "299 words: 1 minute to read"),
        (1301, "1,301 words: 7 minutes to read"),
    ],
)
def test_the_line_stands_below_the_title(words: int, says: str) -> None:
    title, line, *rest = with_reading_time("# One\n\n" + "word " * (words - 1)).split("\n\n")
    assert (title, len(rest)) == ("# One", 1)
    assert line == f'<p class="reading">{says}</p>'


@pytest.mark.parametrize("text", ["# One\n\n" + "word " * 198, "word " * 300])
def test_a_short_page_and_one_without_a_title_have_no_line(text: str) -> None:
    assert with_reading_time(text) == text


def test_mdbook_gets_the_line_and_formulas_are_no_words_of_it() -> None:
    page = "# One\n\n" + "word " * 210 + "$a + b + c$"
    chapter = {"Chapter": {"name": "x", "content": page, "sub_items": []}}
    done = json.loads(preprocessor.convert_book(io.StringIO(json.dumps([{}, {"items": [chapter]}]))))
    assert "211 words: 1 minute to read</p>" in done["items"][0]["Chapter"]["content"]
