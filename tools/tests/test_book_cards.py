"""The card at the end of every chapter: five lines, a command that exists, and the way to the next page."""

import re
from pathlib import Path

import pytest

from tiny_llm_lab.course.manifest import load_course
from tools.book.checks import command_problems
from tools.book.page import Page

SOURCE = Path(__file__).resolve().parents[2] / "book" / "src"
DAYS = load_course().days
CARD = re.compile(
    r"^## Card\n\n\| Day (\S+) \| .+ \|\n\| --- \| --- \|\n((?:\|.*\|\n)+)\n## Bonus$", re.MULTILINE
)
ROW = re.compile(r"^\| \*\*(\w+)\*\* \| (.+) \|$", re.MULTILINE)


@pytest.mark.parametrize("day", DAYS, ids=[day.id for day in DAYS])
def test_a_chapter_ends_with_its_card(day):
    text = "\n".join((SOURCE / page).read_text("utf-8") for page in day.pages)
    ((number, rows),) = CARD.findall(text)
    card = dict(ROW.findall(rows))
    assert (number, [*card]) == (day.id, ["Idea", "Formula", "Invariant", "Command", "Next"])
    command = card["Command"].strip("`")
    assert command.startswith("./pdmw run ")
    assert command_problems(Page(SOURCE / day.chapter, f"```bash\n{command}\n```\n")) == []
    later = [each.chapter for each in DAYS[DAYS.index(day) + 1 :]]
    links = re.findall(r"\]\(([\w.-]+)", card["Next"])
    assert links
    assert all(link in later or link.endswith("-end.md") for link in links)
