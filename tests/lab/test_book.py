"""The book's own checks, each on a copy with one thing wrong, and its figure against the engine."""

import contextlib
import importlib.util
import io
import re
import shutil
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace

import mlx.core as mx
import pytest

from tiny_llm_lab import load_solution
from tiny_llm_lab.course import book
from tiny_llm_lab.course.manifest import Course, load_course
from tiny_llm_lab.types import PrefillEvent, Prompt, SamplingParams, TokenEvent

ROOT = Path(__file__).resolve().parents[2]
CHAPTER = "week2-07-chunked-prefill.md"


@pytest.fixture
def copy(tmp_path: Path) -> Course:
    """The manifest and the book alone; building writes nothing outside."""
    shutil.copy(ROOT / "course.toml", tmp_path)
    shutil.copytree(ROOT / "book", tmp_path / "book", ignore=shutil.ignore_patterns("output"))
    return load_course(tmp_path)


def page(course: Course, name: str = CHAPTER) -> Path:
    return course.root / "book" / "src" / name


def append(course: Course, text: str, name: str = "introduction.md") -> None:
    path = page(course, name)
    path.write_text(path.read_text("utf-8") + text, "utf-8")


def test_the_book_has_no_problems() -> None:
    assert book.problems(load_course()) == []


def test_a_stale_task_table_is_found_and_written_anew(copy: Course) -> None:
    path = page(copy)
    right = path.read_text("utf-8")
    path.write_text(right.replace("| the mask of a chunk |", "| an old title |"), "utf-8")
    assert [name.name for name in book.stale_pages(copy)] == [CHAPTER]
    assert any("the task table is stale" in line for line in book.problems(copy))
    assert book.stale_pages(copy)[path] == right


def test_a_page_that_went_away_is_found(copy: Course) -> None:
    page(copy, "week1-02-rope.md").unlink()
    found = book.problems(copy)
    assert "course.toml: day 1.2 has no chapter: book/src/week1-02-rope.md is missing" in found
    assert any("does not build" in line for line in found)


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
    assert complaint in book.problems(copy)


def test_a_living_link_is_not_reported(copy: Course) -> None:
    before = book.problems(copy)
    append(copy, "\n[x](setup.md#your-desk) [y](#one-set-of-letters) [z](https://example.org/none)\n")
    assert book.problems(copy) == before


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("./pdmw run fly", "no such command"),
        ("pdm run", "no such command"),
        ("$ ./pdmw run test --weak 2", "--weak"),
        ("./pdmw run test --week two", "invalid int value"),
        ("./pdmw run stubs \\\n  --chekc", "--chekc"),
    ],
)
def test_a_command_that_nobody_can_run_is_found(copy: Course, line: str, complaint: str) -> None:
    append(copy, f"\n```bash\n{line}\n```\n")
    found = [problem for problem in book.problems(copy) if problem.startswith("introduction.md")]
    assert len(found) == 1
    assert complaint in found[0]


def test_good_commands_and_other_blocks_are_not_reported(copy: Course) -> None:
    before = book.problems(copy)
    append(copy, "\n```bash\n./pdmw run test --week 2 -- -k chunked -x | cat # why\ngit status\n```\n")
    append(copy, "\n```text\n./pdmw run fly\n```\nProse that says `pdm run fly`.\n")
    assert book.problems(copy) == before


def figure() -> ModuleType:
    spec = importlib.util.spec_from_file_location("figure", ROOT / "book/figures/chunked_prefill_timeline.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["figure"] = module  # dataclasses look their module up there
    spec.loader.exec_module(module)
    return module


def test_the_figure_is_what_its_script_draws() -> None:
    drawing = figure()
    assert drawing.TARGET.read_text("utf-8") == drawing.draw()


class CountingModel:
    """No layers; its clock is the number of tokens that went through it."""

    config = SimpleNamespace(num_hidden_layers=0, max_position_embeddings=4096, vocab_size=8)

    def __init__(self) -> None:
        self.num_tokens = 0

    def __call__(
        self, tokens: mx.array, offset: object, cache: object, logits_to_keep: int | None = None
    ) -> mx.array:
        self.num_tokens += tokens.size
        return mx.zeros((tokens.shape[0], logits_to_keep or 0, 8))

    def create_kv_cache(self) -> list[object]:
        return []


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


class Collected:
    """A pytest plugin that counts the tests of every task."""

    def __init__(self) -> None:
        self.tasks: Counter[str] = Counter()

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        markers = (item.get_closest_marker("task") for item in session.items)
        self.tasks.update(marker.args[0] for marker in markers if marker is not None)


@pytest.mark.parametrize(
    ("day", "num_promises"), [("2.2", 6), ("2.3", 3), ("2.4", 3), ("2.5", 5), ("2.7", 7)]
)
def test_a_chapter_promises_as_many_passing_tests_as_there_are(day: str, num_promises: int) -> None:
    text = (ROOT / "book" / "src" / load_course().day(day).chapter).read_text("utf-8")
    promised = dict(re.findall(r"test --task (\S+)\n.*?Expect `(\d+) passed`", text, re.DOTALL))
    assert len(promised) == num_promises
    collected = Collected()
    files = map(str, sorted((ROOT / "tests" / "week_2").glob(f"test_day_{day[-1]}*.py")))
    with contextlib.redirect_stdout(io.StringIO()):
        args = ["--collect-only", "-q", "-p", "no:cacheprovider", *files]
        pytest.main([*args, "--solution", "ref", "--day", day], plugins=[collected])
    assert {task: str(collected.tasks[task]) for task in promised} == promised
