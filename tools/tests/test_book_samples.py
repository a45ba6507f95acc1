"""Samples, names and results of the pages: what has to be found, and what must not be."""

import json
from functools import partial
from pathlib import Path

import pytest

from tiny_llm_lab.types import UserError
from tools.book.checks import name_problems
from tools.book.page import Page, with_generated
from tools.book.results import asked_table, read_results, results_table
from tools.book.samples import mark_problems, occurs, sample_problems

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("sample", "output", "expected"),
    [
        ("TTFT 57 ms", "warning\nTTFT 1,036.5 ms\n", True),
        ("TTFT 57 ms", "TTFT ms", False),
        ("a […] z", "a b\nc z", True),
        ("a […] z", "a b\nc", False),
        ("one\n\ntwo", "one\ntwo", True),
        ("==== to do ====", "== to do ==", True),
        ("in the attic.", "in the attics", False),
        ("basics.py:14 softmax (10 tests)", "basics.py:9 softmax (3 tests)", True),
        ("basics.py:14 softmax", "basics.py:14 linear", False),
    ],
)
def test_a_sample_occurs_in_the_output_whatever_its_figures(sample, output, expected):
    assert occurs(sample, output) is expected


def readme(text):
    return Page(Path("README.md"), text)


def page(mark, text="right"):
    return readme(f"{mark}\n\n```text\n{text}\n```\n")


def test_a_sample_that_its_command_does_not_print_is_found():
    asked = []

    def run(command):
        asked.append(command)
        return "this is right\n"

    mark = "<!-- output of: ./pdmw run main --raw -->"
    assert list(sample_problems(page(mark), ROOT, run)) == []
    found = list(sample_problems(page(mark, "wrong"), ROOT, run))
    assert found == ["README.md: `./pdmw run main --raw` prints something else: run it and copy its output"]
    assert [words[1:] for words in asked] == [["-m", "tiny_llm_lab", "main", "--raw"]] * 2


def test_the_program_above_is_the_python_block_before_the_sample():
    text = (
        "```python\nprint(6 * 7)\n```\n\n<!-- output of: the program above -->\n\n```text\nthe answer\n```\n"
    )
    found = list(sample_problems(readme(text), ROOT))  # really run
    assert found == ["README.md: `the program above` prints something else: run it and copy its output"]
    text = text.replace("the answer", "42").replace("6 * 7", "40 + 2")
    assert list(sample_problems(readme(text), ROOT)) == []


@pytest.mark.parametrize("path", ["README.md", "book/src/week1-01-attention.md"])
def test_every_sample_of_the_readme_and_the_book_needs_a_mark(path):
    (found,) = mark_problems(Page(Path(path), "```text\nhello\n```\n"), [])
    assert found.startswith(
        f"{Path(path).name}: 1 sample output(s) without a line <!-- output of: COMMAND -->"
    )
    assert list(mark_problems(Page(Path(path), "```plain\nhello\n```\n"), [])) == []
    assert list(mark_problems(page("<!-- output of: ./pdmw run main -->"), [])) == []


def test_a_mark_names_a_command_of_this_program_and_one_in_prose_is_no_mark():
    assert len(list(mark_problems(page("<!-- output of: cat README.md -->"), []))) == 1
    assert list(sample_problems(readme("a line `<!-- output of: COMMAND -->`\n"), ROOT)) == []


def test_a_recorded_sample_needs_its_results():
    assert list(mark_problems(page("<!-- recorded: ladder -->"), ["ladder"])) == []
    assert len(list(mark_problems(page("<!-- recorded: ladder -->"), ["other"]))) == 1


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("`engine/core.py` `EngineCore.advance`", None),
        ("`engine/engine.py` `Engine.generate`, `Engine`", None),
        ("the folder `trace/`: `picture.py`", None),
        ("`StepRecorder.failed` is inherited, `TINY_LLM_CACHE` is read", None),
        ("`engine/gone.py`", "there is no file engine/gone.py"),
        ("`trace/`: `gone.py`", "there is no file gone.py"),
        ("`no_such_function`", "there is no no_such_function"),
        ("`Engine.no_such_method`", "there is no Engine.no_such_method"),
        ("`engine/core.py` `PromptRun`", "there is no PromptRun in src/tiny_llm_ref/engine/core.py"),
    ],
)
def test_a_name_that_does_not_exist_is_found(text, complaint):
    written = Page(Path("page.md"), f"\n{text}\n")
    assert name_problems(written, ROOT) == ([f"page.md:2: {complaint}"] if complaint else [])


FIGURES = [
    {"case": "a", "what": "ms", "value": 1234.5, "low": 1200, "high": 1300},
    {"case": "a", "what": "ratio", "value": 0.04},
    {"case": "b", "what": "ms", "value": 33.0},
]
RESULT = {
    "schema": 1,
    "claim": "It holds.",
    "command": "./pdmw run main",
    "machine": "a machine",
    "date": "2026-11-22",
    "commit": "abc",
    "note": "",
    "figures": FIGURES,
}


@pytest.fixture
def root(tmp_path):
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "it.json").write_text(json.dumps(RESULT))
    return tmp_path


def test_a_table_has_a_row_for_each_case_and_the_spread_when_asked(root):
    result = read_results(root)["it"]
    assert results_table(result, has_spread=True).splitlines() == [
        "|  | ms | ratio |",
        "| --- | --: | --: |",
        "| a | 1,234 (1,200 to 1,300) | 0.04 |",
        "| b | 33 |  |",
    ]
    text = "<!-- results: it; ratio -->\nstale\n<!-- end of results -->\n"
    right = text.replace("stale", "\n|  | ratio |\n| --- | --: |\n| a | 0.04 |\n| b |  |\n")
    assert with_generated(text, {"results": partial(asked_table, {"it": result})}) == right


@pytest.mark.parametrize("asked", ["other", "it; weight"])
def test_a_page_that_asks_for_what_is_not_there_is_refused(root, asked):
    with pytest.raises(UserError, match=r"other|weight"):
        asked_table(read_results(root), asked)


@pytest.mark.parametrize(
    "change", [{"schema": 2}, {"claims": "x"}, {"figures": [{"case": "a"}]}, {"figures": 3}]
)
def test_a_file_of_another_schema_is_refused_by_name(root, change):
    (root / "results" / "bad.json").write_text(json.dumps(RESULT | change))
    with pytest.raises(UserError, match=r"results/bad\.json is not a result"):
        read_results(root)
