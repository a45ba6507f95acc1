"""The pages' own checks, each on a copy with one thing wrong, and the book's figure against the engine."""

import importlib.util
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import cast

import mlx.core as mx
import pytest

from tiny_llm_lab import load_solution
from tiny_llm_lab.course.book import command as book
from tiny_llm_lab.course.book.checks import command_problems, formula_problems
from tiny_llm_lab.course.book.page import Page
from tiny_llm_lab.course.book.pages import days_table, hours, stale_pages
from tiny_llm_lab.course.manifest import Course, load_course
from tiny_llm_lab.runtime.task_names import TaskNames
from tiny_llm_lab.types import KvCache, PrefillEvent, Prompt, SamplingParams, TokenEvent, Wanted

ROOT = Path(__file__).resolve().parents[2]
CHAPTER = "week2-07-chunked-prefill.md"


@pytest.fixture
def copy(tmp_path: Path) -> Course:
    """The manifest and the pages; building writes nothing outside."""
    for name in ("course.toml", "README.md", "CONTRIBUTING.md"):
        shutil.copy(ROOT / name, tmp_path)
    for name in ("docs", "results"):
        shutil.copytree(ROOT / name, tmp_path / name)
    for name in ("src", "tests"):
        (tmp_path / name).symlink_to(ROOT / name)
    shutil.copytree(ROOT / "book", tmp_path / "book", ignore=shutil.ignore_patterns("output"))
    return load_course(tmp_path)


def page(course: Course, name: str = CHAPTER) -> Path:
    return course.root / "book" / "src" / name


def append(course: Course, text: str, name: str = "introduction.md") -> None:
    path = page(course, name)
    path.write_text(path.read_text("utf-8") + text, "utf-8")


def test_a_page_that_went_away_is_found(copy: Course) -> None:
    page(copy, "week1-02-rope.md").unlink()
    found = book.page_problems(copy)
    assert "course.toml: day 1.2 has no chapter: book/src/week1-02-rope.md is missing" in found
    assert any("cannot build" in line for line in found)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("\n[x](no-such-page.md)\n", "introduction.md: dead link: no-such-page.html"),
        ("\n[x](setup.md#no-such-heading)\n", "introduction.md: dead anchor: setup.html#no-such-heading"),
        ("\n![x](figures/none.png)\n", "introduction.md: dead link: figures/none.png"),
    ],
)
def test_a_dead_link_is_found(copy: Course, text: str, complaint: str) -> None:
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
def test_a_command_line_that_its_parser_rejects_is_found(line: str, complaint: str) -> None:
    found = command_problems(Page(Path("introduction.md"), f"\n```bash\n{line}\n```\n"))
    assert len(found) == 1
    assert complaint in found[0]


def test_good_commands_and_other_blocks_are_not_reported() -> None:
    good = "./pdmw run test --week 2 -- -k chunked -x | cat # why\ngit status\n./pdmw run python -c pass"
    text = f"```bash\n{good}\n```\n```text\n./pdmw run fly\n```\nProse that says `pdm run fly`.\n"
    assert command_problems(Page(Path("introduction.md"), text)) == []


@pytest.mark.parametrize(
    ("line", "formula"),
    [("\\\\[ o = 1 \\\\]", "\\\\["), ("with \\( i \\) tokens", "\\("), ("x \\cdot y", "\\cdot")],
)
def test_raw_latex_is_found(line: str, formula: str) -> None:
    found = formula_problems(Page(Path("page.md"), f"one\n{line}\n"))
    assert found == [f"page.md:2: raw LaTeX {formula}: put the formula between dollars, $…$"]


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [("docs/commands.md", "\n## main", "\n## mine"), ("results/README.md", "# Results", "")],
)
def test_a_generated_part_that_was_edited_is_stale(copy: Course, name: str, old: str, new: str) -> None:
    path = copy.root / name
    right = path.read_text("utf-8")
    path.write_text(right.replace(old, new, 1), "utf-8")
    assert stale_pages(copy) == {path: right}


def test_the_table_of_days_says_which_days_have_a_chapter_and_which_languages(copy: Course) -> None:
    page = copy.root / "book/src/week1-01-attention.md"
    page.write_text("<!-- tasks: 1.1 -->\n<!-- end of tasks -->\nIt comes later.\n")
    rows = {row.split(" | ")[0]: row for row in days_table(copy).splitlines()}
    assert rows["| 1.1"] == "| 1.1 | Attention | `layers/` |  | tasks only |"
    assert rows["| 2.5"].endswith("| `layers/`, `kernels/`, `models/` | C++, Metal | chapter |")


def figure() -> ModuleType:
    spec = importlib.util.spec_from_file_location("figure", ROOT / "book/figures/chunked_prefill_timeline.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["figure"] = module  # dataclasses look their module up there
    spec.loader.exec_module(module)
    return module


class CountingModel:
    """One layer that stores zeros; its clock is the number of tokens that went through it."""

    config = SimpleNamespace(num_hidden_layers=1, max_position_embeddings=4096, vocab_size=8)
    ops = None

    def __init__(self) -> None:
        self.num_tokens = 0

    def __call__(self, tokens: mx.array, offset: object, cache: list[KvCache], *, wanted: Wanted) -> mx.array:
        self.num_tokens += tokens.size
        zeros = mx.zeros((tokens.shape[0], 1, tokens.shape[1], 1))
        cache[0].update_and_fetch(zeros, zeros)
        return mx.zeros((tokens.shape[0], wanted.last, 8))

    def create_kv_cache(self) -> list[KvCache]:
        return [TaskNames(cast(ModuleType, load_solution("ref"))).TinyKvFullCache()]


class Silent:
    """A tokenizer without text and without an end."""

    eos_token_ids: frozenset[int] = frozenset()
    last_segment = ""
    add_token = finalize = lambda *_: None

    @property
    def detokenizer(self) -> "Silent":
        return self


def serve(prompts: Sequence[Prompt], prefill_step: int, batch_size: int = 2) -> tuple[list, list]:
    model, events = CountingModel(), []
    done = load_solution("ref").batch_generate(
        model,
        Silent(),
        prompts,
        prefill_step=prefill_step,
        batch_size=batch_size,
        on_event=events.append,
        clock=lambda: float(model.num_tokens),
    )
    return done, events


@pytest.mark.parametrize("prefill_step", [32, 8])
def test_the_figure_shows_what_the_engine_does(prefill_step: int) -> None:
    drawn = figure().schedule(prefill_step)
    # A's prompt of one token moves everything by one.
    prompts = [
        Prompt([1], SamplingParams(max_tokens=8)),
        Prompt([1] * 32, SamplingParams(max_tokens=1), arrival_s=1 + drawn.arrival_of_b),
    ]
    (a, b), _ = serve(prompts, prefill_step)
    assert a.timing.itl_s == drawn.gaps_of_a
    assert b.timing.ttft_s == drawn.first_token_of_b - drawn.arrival_of_b


def test_the_iterations_of_task_2_7_4_are_what_the_engine_does() -> None:
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


def test_hours_follow_the_lines_of_the_answers() -> None:
    course = load_course()
    lines = sum(task.lines for task in course.day("1.5").tasks)
    assert hours(course, "1.5") == f"*About {round(lines / 30)} hours: {lines} lines to write.*"
    assert hours(course, "1.1").startswith("*About an hour: ")
    total = sum(task.lines for day in course.days for task in day.tasks)
    assert f"{total:,} lines, about {round(total / 30)} hours" in hours(course)
