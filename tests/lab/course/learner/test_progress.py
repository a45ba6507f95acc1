"""`progress`: one page that needs nothing beside it."""

import re
from pathlib import Path

import pytest
from tests.lab.course.learner.small_course import ANSWER, SUMS

from tiny_llm_lab.cli.dispatch import main
from tiny_llm_lab.course.learner.progress_page import progress_page
from tiny_llm_lab.course.manifest import load_course
from tiny_llm_lab.course.record.desk import open_desk
from tiny_llm_lab.course.record.record import Outcome, Record, save_record
from tiny_llm_lab.course.record.task_sources import TaskSources


def pass_first(clone: Path) -> None:
    (clone / "src/tiny_llm/sums.py").write_text(ANSWER)
    course = load_course(clone)
    source = TaskSources(course).hash_of(course.task("1.1.1"))
    day = "2026-01-02T10:00:00"
    save_record(clone, Record({"1.1.1": Outcome(2, 0, 0, True, source, day, day)}))


def test_the_page_has_days_tasks_dates_and_the_share(clone: Path) -> None:
    pass_first(clone)
    page = progress_page(open_desk())
    assert "1 of 4 tasks passed (25 %)" in page and '<progress value="1" max="4"' in page
    assert "From 2026-01-02 to 2026-01-02." in page
    assert "<span>1.1 One</span><span>1/2</span>" in page
    first, second, *_ = re.findall(r"<li .*</li>", page)
    assert 'class="passed"' in first and "✓" in first and '<span class="when">2026-01-02</span>' in first
    assert 'class="todo"' in second and "a fast sum (optional)" in second


def test_a_task_that_is_a_stub_again_has_no_date(clone: Path) -> None:
    pass_first(clone)
    (clone / "src/tiny_llm/sums.py").write_text(SUMS)
    page = progress_page(open_desk())
    assert "2026-01-02" not in page and "0 of 4 tasks passed" in page


@pytest.mark.usefixtures("clone")
def test_nothing_has_passed_yet() -> None:
    page = progress_page(open_desk())
    assert "0 of 4 tasks passed (0 %)" in page and "Nothing has passed yet." in page


def test_the_page_needs_nothing_beside_it_and_suits_phones_and_dark(clone: Path) -> None:
    page = progress_page(open_desk())
    assert not re.search(r"""(src|href)=|url\(|@import""", page)
    assert 'name="viewport"' in page and "prefers-color-scheme: dark" in page
    assert "$" not in page


def test_titles_are_escaped(clone: Path) -> None:
    path = clone / "course.toml"
    path.write_text(path.read_text().replace('"the counter"', '"<b>&</b>"'))
    assert "&lt;b&gt;&amp;&lt;/b&gt;" in progress_page(open_desk())


def test_the_command_writes_a_file_and_prints_its_path(
    clone: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["progress"]) == 0
    assert capsys.readouterr().out == f"{clone / 'out/progress.html'}\n"
    assert (clone / "out/progress.html").exists()
    assert main(["progress", str(tmp_path / "a/b.html")]) == 0
    assert (tmp_path / "a/b.html").exists()
    assert main(["progress", str(tmp_path)]) == 2
    assert capsys.readouterr().err.endswith("Is a directory: name another file\n")
