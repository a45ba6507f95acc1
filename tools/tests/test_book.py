"""The pages' own checks, each on a copy with one thing wrong, and the book's figure against the engine."""

import contextlib
import io
import json
import re
import shutil
from collections import Counter
from itertools import product
from pathlib import Path

import pytest
from tests.helpers.phases import serve
from tests.helpers.scheduling import Job, drive

from tiny_llm_lab import load_solution
from tiny_llm_lab.course.manifest import load_course
from tiny_llm_lab.types import PrefillEvent, Prompt, SamplingParams, SchedulerConfig, TokenEvent
from tools.book import command as book
from tools.book.checks import command_problems, formula_problems
from tools.book.page import Page
from tools.book.pages import days_table, hours, missing_chapters, stale_pages

ROOT = Path(__file__).resolve().parents[2]
CHAPTER = "week2-07-chunked-prefill.md"


@pytest.fixture
def copy(tmp_path):
    """The manifest and the pages; building writes nothing outside."""
    for name in ("course.toml", "README.md", "CONTRIBUTING.md"):
        shutil.copy(ROOT / name, tmp_path)
    for name in ("docs", "results"):
        shutil.copytree(ROOT / name, tmp_path / name)
    for name in ("src", "tests"):
        (tmp_path / name).symlink_to(ROOT / name)
    shutil.copytree(ROOT / "book", tmp_path / "book", ignore=shutil.ignore_patterns("output"))
    return load_course(tmp_path)


def page(course, name=CHAPTER):
    return course.root / "book" / "src" / name


def append(course, text, name="introduction.md"):
    path = page(course, name)
    path.write_text(path.read_text("utf-8") + text, "utf-8")


def test_a_page_that_went_away_is_found(copy):
    page(copy, "week1-02-rope.md").unlink()
    found = book.page_problems(copy)
    assert "course.toml: day 1.2 has no chapter: book/src/week1-02-rope.md is missing" in found
    assert any("cannot build" in line for line in found)


def test_a_day_needs_each_of_its_pages_and_links_to_all(copy):
    contents = page(copy, "SUMMARY.md")
    contents.write_text(contents.read_text("utf-8").replace("week2-07b-what", "what"), "utf-8")
    page(copy, "week2-07b-what-chunks-cost.md").unlink()
    assert missing_chapters(copy) == [
        "course.toml: day 2.7 has no chapter: book/src/week2-07b-what-chunks-cost.md is missing",
        "SUMMARY.md: day 2.7 is not listed: link to week2-07b-what-chunks-cost.md",
    ]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("\n[x](no-such-page.md)\n", "introduction.md: dead link: no-such-page.html"),
        ("\n[x](setup.md#no-such-heading)\n", "introduction.md: dead anchor: setup.html#no-such-heading"),
        ("\n![x](figures/none.png)\n", "introduction.md: dead link: figures/none.png"),
    ],
)
def test_a_dead_link_is_found(copy, text, complaint):
    append(copy, text)
    assert complaint in book.page_problems(copy)


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("./pdmw run fly", "does not exist"),
        ("pdm run", "does not exist"),
        ("$ ./pdmw run test --weak 2", "--weak"),
        ("./pdmw run test --week two", "invalid int value"),
        ("./pdmw run stubs \\\n  --chekc", "--chekc"),
    ],
)
def test_a_command_line_that_its_parser_rejects_is_found(line, complaint):
    found = command_problems(Page(Path("introduction.md"), f"\n```bash\n{line}\n```\n"))
    assert len(found) == 1
    assert complaint in found[0]


def test_good_commands_and_other_blocks_are_not_reported():
    good = "./pdmw run test --week 2 -- -k chunked -x | cat # why\ngit status\n./pdmw run python -c pass"
    text = f"```bash\n{good}\n```\n```text\n./pdmw run fly\n```\nProse that says `pdm run fly`.\n"
    assert command_problems(Page(Path("introduction.md"), text)) == []


@pytest.mark.parametrize(
    ("line", "formula"),
    [("\\\\[ o = 1 \\\\]", "\\\\["), ("with \\( i \\) tokens", "\\("), ("x \\cdot y", "\\cdot")],
)
def test_raw_latex_is_found(line, formula):
    found = formula_problems(Page(Path("page.md"), f"one\n{line}\n"))
    assert found == [f"page.md:2: raw LaTeX {formula}: put the formula between dollars, $…$"]


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [("docs/commands.md", "\n## main", "\n## mine"), ("results/README.md", "# Results", "")],
)
def test_a_generated_part_that_was_edited_is_stale(copy, name, old, new):
    path = copy.root / name
    right = path.read_text("utf-8")
    path.write_text(right.replace(old, new, 1), "utf-8")
    assert stale_pages(copy) == {path: right}


def test_the_table_of_days_says_which_languages_and_how_many_hours(copy):
    rows = {row.split(" | ")[0]: row for row in days_table(copy).splitlines()}
    assert rows["| 1.1"] == "| 1.1 | [Attention](week1-01-attention.md) | `layers/` |  | **0.8** |  |"
    assert rows["| 2.5"].endswith("gpu.md) | `layers/`, `kernels/`, `models/` | C++, Metal | 4.3 | 1.7 |")
    assert rows["| 2.8"].endswith(" |  |  | 4.7 |")


def sliders():
    """The figures with sliders, in the committed file."""
    text = (ROOT / "book/src/figures/frames.js").read_text("utf-8")
    return json.loads(text[text.index("{") :].rstrip(";\n"))


def says(figure):
    """What the sliders of a figure say at each setting."""
    return sliders()[figure]["says"]


@pytest.mark.parametrize("name", sliders())
def test_every_setting_of_the_sliders_has_its_frame_and_its_sentence(name):
    svg, figure = (ROOT / f"book/src/figures/{name}.svg").read_text("utf-8"), sliders()[name]
    settings = {"-".join(map(str, setting)) for setting in product(*figure["sliders"].values())}
    assert settings == set(figure["says"])
    frames = re.findall(r'<view id="([^"]+)"', svg)
    assert sorted(frames) == sorted(settings)
    assert frames[0] == "-".join(map(str, figure["start"]))  # what a page without a script shows


def test_the_sliders_of_day_2_7_say_what_the_loop_does():
    for prefill_step, said in says("chunked-prefill-timeline").items():
        prompts = [
            Prompt([1], SamplingParams(max_tokens=8)),
            Prompt([1] * 32, SamplingParams(max_tokens=1), arrival_s=3.0),
        ]
        (a, b), _ = serve(prompts, int(prefill_step))
        gap, first = max(a.timing.itl_s), b.timing.ttft_s
        assert said == f"A's longest gap is {gap:g} tokens. B has its first token after {first:g}."


def test_the_sliders_of_day_3_4_say_what_the_scheduler_does():
    for setting, said in says("step-budget").items():
        budget, threshold = map(int, setting.split("-"))
        config = SchedulerConfig(
            max_num_batched_tokens=budget, max_num_seqs=8, long_prefill_token_threshold=threshold
        )
        jobs = [Job("a", 3, 10), Job("b", 5, 8), Job("c", 40, 3, step=2), Job("d", 20, 3, step=3)]
        run = drive(load_solution("ref"), config, jobs)
        largest = max(run.costs("a") + run.costs("b"))
        numbers = [largest, jobs[2].first_token_step, jobs[3].first_token_step, len(run.plans)]
        assert [int(number) for number in re.findall(r"\d+", said)] == numbers, setting


def test_the_iterations_of_task_2_7_4_are_what_the_engine_does():
    prompts = [Prompt([1] * 3, SamplingParams(max_tokens=5)), Prompt([1] * 10, SamplingParams(max_tokens=2))]
    _, events = serve(prompts, prefill_step=4)
    names = {0: "a", 1: "b"}
    happened = [
        f"{names[e.prompt_idx]}:{e.num_computed_tokens}"
        if isinstance(e, PrefillEvent)
        else names[e.prompt_idx]
        for e in events
        if isinstance(e, PrefillEvent | TokenEvent)
    ]
    assert happened == ["a:3", "a", "b:4", "a", "b:8", "a", "b:10", "b", "a", "a", "b"]


def test_hours_follow_the_lines_of_the_answers():
    course = load_course()
    lines = sum(task.lines for task in course.day("1.5").tasks)
    told = f"*About {round(lines / 30)} hours: {lines} lines to write."
    assert hours(course, "1.5") == f"{told} This day is on both paths.*"
    assert hours(course, "3.5").endswith(" This day is on the whole path, given on the short one.*")
    assert hours(course, "1.1").startswith("*About an hour: ")
    assert (
        hours(course, "2.8")
        == "*About 5 hours: 142 lines to write. This day is a bonus, and on neither path.*"
    )
    assert hours(course, "3.4").endswith(" Its bonus tasks have 30 lines more, about an hour.*")
    whole, bonus = (
        sum(task.lines for task in course.tasks if task.bonus == is_so) for is_so in (False, True)
    )
    assert 2_900 < whole <= 3_000, "the whole path is at most 100 hours"
    assert f"{whole:,} lines, about {round(whole / 30)} hours" in hours(course)
    assert f" Bonus tasks have {bonus} lines more, about {round(bonus / 30)} hours." in hours(course)


# The card at the end of every chapter: four lines, a command that exists, and the way to the next page


SOURCE = Path(__file__).resolve().parents[2] / "book" / "src"
DAYS = load_course().days
CARD = re.compile(r"^## Card\n\n\| Day (\S+) \| .+ \|\n\| --- \| --- \|\n((?:\|.*\|\n)+)\n#", re.MULTILINE)
ROW = re.compile(r"^\| \*\*(\w+)\*\* \| (.+) \|$", re.MULTILINE)


@pytest.mark.parametrize("day", DAYS, ids=[day.id for day in DAYS])
def test_a_chapter_ends_with_its_card(day):
    text = "\n".join((SOURCE / page).read_text("utf-8") for page in day.pages)
    ((number, rows),) = CARD.findall(text)
    card = dict(ROW.findall(rows))
    card.pop("Command", None)
    assert (number, [*card]) == (day.id, ["Idea", "Formula", "Next"])
    later = [each.chapter for each in DAYS[DAYS.index(day) + 1 :]]
    links = re.findall(r"\]\(([\w.-]+)", card["Next"])
    assert links
    assert all(link in later or link.endswith("-end.md") for link in links)


# The numbers of passing tests that chapters promise, for every task and every whole day


OF_TASK = re.compile(r"run watch (\S+)\n(?:(?!</div>).)*?Expect `(\d+) passed`", re.DOTALL)
OF_DAY = re.compile(r"whole day.*?`(\d+) passed`")


class Collected:
    """A pytest plugin that counts the tests of every task."""

    def __init__(self):
        self.tasks = Counter()

    def pytest_collection_finish(self, session):
        markers = (item.get_closest_marker("task") for item in session.items)
        self.tasks.update(marker.args[0] for marker in markers if marker is not None)


def num_tests(week):
    """How many tests each task of a week has, the long ones included."""
    collected = Collected()
    files = map(str, sorted((ROOT / "tests" / f"week_{week}").glob("test_day_*.py")))
    with contextlib.redirect_stdout(io.StringIO()):
        args = ["--collect-only", "-q", "-p", "no:cacheprovider", *files]
        pytest.main([*args, "--solution", "ref", "--week", str(week)], plugins=[collected])
    return collected.tasks


@pytest.mark.parametrize("week", [1, 2, 3, 4])
def test_chapters_promise_as_many_passing_tests_as_there_are(week):
    tasks = num_tests(week)
    promised, wanted = dict[str, str](), dict[str, str]()
    for day in load_course().week(week):
        text = "".join((ROOT / "book" / "src" / page).read_text("utf-8") for page in day.pages)
        promised |= dict(OF_TASK.findall(text))
        wanted |= {task.id: str(tasks[task.id]) for task in day.tasks}
        for number in OF_DAY.findall(text):
            promised[day.id] = number
            wanted[day.id] = str(sum(tasks[task.id] for task in day.tasks))
    assert promised == wanted
