"""The steps of `check` that prove something about the course, each on a course that breaks the rule."""

import argparse
import re
import tomllib
from pathlib import Path

import pytest
from tests.helpers.trees import edit

from tiny_llm_lab.cli import dispatch as cli
from tiny_llm_lab.cli.dispatch import main
from tiny_llm_lab.course.manifest import load_course
from tools.checking import check
from tools.checking.budget import over_budget
from tools.checking.prose import complaints, num_words, turns
from tools.checking.soundness import starter_faults
from tools.commands import EVERY


def test_a_sound_course_has_no_faults(tree):
    # A learner who has written something is not an unsound course.
    edit(tree, "src/tiny_llm/sums.py", 'raise NotImplementedError("task 1.1.1")', "return 2 * x")
    assert starter_faults(load_course(tree)) == []


def test_a_test_that_the_starter_passes_grades_nothing(tree):
    edit(tree, "tests/week_1/test_day_1.py", "assert llm.twice(2) == 4", "assert callable(llm.twice)")
    (fault,) = starter_faults(load_course(tree))
    assert "test_twice: passed instead of todo" in fault


def budget_of(root, lines, more="", above="", **files):
    (root / "p" / "own").mkdir(parents=True)
    parts = f'p = {{ folders = ["p"], lines = {lines}, ceiling = 2000 }}\n'
    parts += 'own = { folders = ["p/own"], lines = 3, ceiling = 3 }\n'
    (root / "budget.toml").write_text(f"above = [{above}]\n[parts]\n{parts}{more}")
    for name, text in files.items():
        (root / "p" / name.replace("_", ".")).write_text(text)
    (root / "p" / "own" / "x.py").write_text("f()\n" * 3)  # of the inner part alone
    return list(over_budget(root))


def test_what_is_too_long_is_named(tmp_path):
    described = 'def described():\n    """' + "\n" * 50 + '"""\n'
    code = "f()\n\n# why\n// why\n"
    found = budget_of(
        tmp_path,
        242,
        a_py="def long():\n" + "    f()\n" * 40 + described,
        b_py="f()\n\n# why\n" * 200,
        c_cpp="f();\n\n// why\n" * 200,
        d_h="f();\n" * 301,
        e_metal="f();\n" * 301,
        notes_txt=code * 301,
    )
    assert found == [
        "p/a.py:1: long has 41 lines, more than 40: split it",
        "p/d.h: 301 lines of code, more than 300: split it by topic",
        "p/e.metal: 301 lines of code, more than 300: split it by topic",
    ]


@pytest.mark.parametrize(
    ("lines", "says"),
    [(200, ""), (199, "cut, or raise it below its ceiling"), (203, "lower it in budget.toml")],
)
def test_a_part_has_a_budget_that_grows_by_an_edit_only(tmp_path, lines, says):
    found = budget_of(tmp_path, lines, a_py="f()\n" * 200)
    assert found == ([f"p: 200 lines of code, budget {lines}: {says}"] if says else [])


@pytest.mark.parametrize(
    ("lines", "above", "says"),
    [
        (2001, "", "a budget of 2001 is above its ceiling, 2000: cut"),
        (2001, "'p'", ""),
        (2000, "'p'", "it is below its ceiling: remove it from `above` in budget.toml"),
        (2000, "", ""),
    ],
)
def test_a_ceiling_holds_for_all_parts_but_those_above_it(tmp_path, lines, above, says):
    long = '[long]\n"p/a.py" = 2001'
    assert budget_of(tmp_path, lines, long, above, a_py="f()\n" * lines) == ([f"p: {says}"] if says else [])


def test_a_part_of_several_folders_leaves_out_what_another_names(tmp_path):
    for name, num_lines in {"a/a.py": 3, "a/tests/t.py": 5, "b/b.py": 4, "b/more/c.py": 2}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("f()\n" * num_lines)
    parts = '[parts]\nboth = { folders = ["a", "b"], lines = 9, ceiling = 9 }\n'
    parts += 'tests = { folders = ["a/tests"], lines = 4, ceiling = 4 }\n'
    (tmp_path / "budget.toml").write_text(parts)
    [fault] = over_budget(tmp_path)
    assert fault.startswith("tests: 5 lines of code, budget 4: cut")


def test_the_list_of_long_files_only_gets_shorter(tmp_path):
    long = "[long]\n" + "".join(f'"p/{name}.py" = 400\n' for name in ("still", "grown", "cut", "gone"))
    files = {"still_py": "f()\n" * 400, "grown_py": "f()\n" * 401, "cut_py": "f()\n" * 300}
    assert budget_of(tmp_path, 1101, long, **files) == [
        "p/cut.py: 300 lines of code: remove it from the long files in budget.toml",
        "p/grown.py: 401 lines of code, more than 400: split it by topic",
        "p/gone.py does not exist: remove it from budget.toml",
    ]


def test_every_step_runs_and_one_failure_fails(monkeypatch, capsys):
    steps = {
        "bad": check.Step("", lambda course, args: ["a reason"]),
        "good": check.Step("", lambda course, args: []),
    }
    monkeypatch.setattr(check, "STEPS", steps)
    asked = argparse.Namespace(
        command="check",
        only=None,
        task=None,
        day=None,
        mixes=1,
        full=False,
        no_tests=False,
        rebase=False,
        quick=False,
    )
    assert check.run(asked) == 1
    said = capsys.readouterr()
    assert [line.split()[0] for line in said.out.splitlines()] == ["FAILED", "a", "ok"]
    assert said.err == "failed: bad\n"
    asked.only = ["good"]
    assert check.run(asked) == 0


@pytest.mark.parametrize(
    ("flags", "there", "not_there"),
    [
        ([], {"tests", "gpu", "threads"}, {"mistakes", "kernel-mistakes"}),
        (["--no-tests"], {"gpu", "threads"}, {"tests", "mistakes"}),
        (["--quick"], set(check.QUICK_STEPS), set(check.STEPS) - set(check.QUICK_STEPS)),
        (["--full"], set(check.STEPS), set()),
        (["--task", "1.1.1"], {"mistakes"}, set(check.STEPS) - {"mistakes"}),
    ],
)
def test_what_takes_long_runs_when_asked_for(monkeypatch, flags, there, not_there):
    ran = []
    monkeypatch.setattr(check, "_passes", lambda name, course, args: ran.append(name) or True)
    assert main(["check", *flags], EVERY) == 0
    assert there <= set(ran)
    assert not not_there & set(ran)


# What `./pdmw` and the pages call a command is one, and each command is there


ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = set(tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["pdm"]["scripts"])
FOLDERS = (".", "docs", "book/src", "tools", "benchmarks", "recipes/default_model", ".github")
NO_COMMANDS = {"python", "COMMAND", "X"}  # a program that PDM runs, and placeholders


def test_scripts_and_catalogues_are_the_same():
    assert set(EVERY) == SCRIPTS


def test_pdmw_prints_every_command_and_nothing_else(capsys):
    assert cli.main([]) == 0
    *lines, last = capsys.readouterr().out.splitlines()
    described = [line.split()[2] for line in lines if line.startswith("  ./pdmw run ")]
    named = [name for line in lines[len(described) :] for name in line.partition(": ")[2].split(", ")]
    assert len(described) == 13 and "--help" in last
    assert sorted([*described, *named]) == sorted(SCRIPTS)


def test_the_page_of_commands_has_a_section_for_each():
    page = (ROOT / "docs" / "commands.md").read_text("utf-8").partition("<!-- commands -->")[2]
    page = page.partition("<!-- end of commands -->")[0]
    assert set(re.findall(r"^## (\S+)$", page, re.MULTILINE)) == SCRIPTS


def test_every_command_that_a_page_names_exists():
    pages = [path for folder in FOLDERS for path in (ROOT / folder).glob("*.md")]
    found = {
        (path.name, name)
        for path in pages
        for name in re.findall(r"(?:pdmw|pdm) run ([\w-]+)", path.read_text("utf-8"))
    }
    assert {name for _, name in found} > {"main", "serve", "check", "bench-engine", "diverge"}
    assert sorted((page, name) for page, name in found if name not in SCRIPTS | NO_COMMANDS) == []


# The step of `check` that counts turns of phrase, on pages that have some


PATTERNS = {
    "stands": r"\bstands?\b",
    "that of": r"\bthat of\b",
    "inversion": r"(?m:^)(?-i:Were) (?:it|the)\b",
}
PAGE = """The pool stands there, as `stands` does. Its size is that of a block, [that of](that-of.md).
```text
it stands
```
<!-- stands -->
Were it not so, it stands. They were the first.
"""


def pages(root, budget, text=PAGE, words=100):
    table = "".join(f"{name!r} = {pattern!r}\n" for name, pattern in PATTERNS.items())
    (root / "prose.toml").write_text(
        f'pages = ["*.md"]\n[turns]\n{table}[words]\n"a*.md" = {words}\n[budget]\n{budget}\n'.replace(
            "\\\\", "\\"
        )
    )
    (root / "a.md").write_text(text)
    return list(complaints(root))


def test_code_links_and_comments_are_no_prose():
    assert turns(PAGE, PATTERNS) == {"stands": 2, "that of": 2, "inversion": 1}


@pytest.mark.parametrize(
    ("budget", "says"),
    [
        ('"a.md" = 5', []),
        (
            '"a.md" = 4',
            ["a.md: 5 turns that docs/style.md rewrites, budget 4: stands 2, that of 2, inversion 1"],
        ),
        ("", ["a.md: 5 turns that docs/style.md rewrites, budget 0: stands 2, that of 2, inversion 1"]),
        ('"a.md" = 6', ["a.md: 5 turns, budget 6: lower it in prose.toml"]),
        ('"a.md" = 5\n"b.md" = 1', ["b.md does not exist: remove it from prose.toml"]),
    ],
)
def test_a_budget_only_falls(tmp_path, budget, says):
    assert pages(tmp_path, budget) == says


LONG = """# A heading

Don't count 1,024 [links](to-a-page.md) as `two words`. <!-- four words of comment -->

<details><summary>Answer</summary>

It's six.
</details>

<!-- hours: 2.7 -->

*About 6 hours: 183 lines to write.*
<!-- end of hours -->

| a table | has none |
|---|---|

$$a + b$$

```text
nor has code
```
"""


def test_words_are_those_of_sentences():
    assert num_words(LONG) == 12


@pytest.mark.parametrize(
    ("most", "says"),
    [(12, []), (11, ["a.md: 12 words, at most 11: shorten it, or give a part its own page"])],
)
def test_a_page_has_no_more_words_than_it_may(tmp_path, most, says):
    (tmp_path / "b.md").write_text(LONG)
    assert pages(tmp_path, "", LONG, most) == says
