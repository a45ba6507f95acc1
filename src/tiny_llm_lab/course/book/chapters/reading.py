"""How long a page takes to read: the words of its prose, shown below its title."""

import re
from typing import Final

from tiny_llm_lab.course.book.chapters.formulas import without_formulas

WORDS_A_MINUTE: Final = 200

# Code, tables and pictures are looked at, not read word by word; tags and comments are not seen at all.
_NOT_READ: Final = re.compile(
    r"^[ \t]*(?P<fence>`{3,}|~{3,}).*?^[ \t]*(?P=fence)[^\n]*$"
    r"|^[ \t]*\|[^\n]*$"
    r"|<!--.*?-->"
    r"|</?[A-Za-z][^<>]*>"
    r"|!\[[^\]]*\]\([^)\s]+\)",
    re.DOTALL | re.MULTILINE,
)
_LINK: Final = re.compile(r"\[([^\]]*)\]\([^)\s]+\)")
_NAME: Final = re.compile(r"`[^`\n]+`")
_WORD: Final = re.compile(r"\w+(?:[.,'’/-]\w+)*")
_TITLE: Final = re.compile(r"\A\s*# [^\n]+\n")


def count_words(text: str) -> int:
    """The words of a page's prose, folded answers among them; a name of code in a line is one word."""
    text = _NOT_READ.sub(" ", without_formulas(text))
    return len(_WORD.findall(_LINK.sub(r"\1", _NAME.sub("name", text))))


def with_reading_time(text: str) -> str:
    """A page with its words and minutes below its title, unless it is read in less than a minute."""
    words = count_words(text)
    if words < WORDS_A_MINUTE or not _TITLE.match(text):
        return text
    minutes = round(words / WORDS_A_MINUTE)
    line = f'<p class="reading">{words:,} words: {minutes} minute{"s" * (minutes > 1)} to read</p>'
    return _TITLE.sub(lambda title: f"{title[0]}\n{line}\n", text)
