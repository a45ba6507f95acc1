"""The manifest: what is read, who owns what, and what is found wrong with it."""

import ast
import re

import pytest
from tests.helpers.trees import course_files, edit, write_files

from tiny_llm_lab.course.exercises import Growth, as_of, exercises, in_starter, reference_sources
from tiny_llm_lab.course.manifest import load_course
from tiny_llm_lab.course.starter.stubs import starter
from tiny_llm_lab.types import UserError
from tools.book.pages import Signatures
from tools.checking.audit import answer_lines, complaints

GROWING = course_files("growing")
ANSWER, STARTER, SUMS = GROWING["answer.py"], GROWING["starter.py"], GROWING["src/tiny_llm_ref/sums.py"]


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('id = "1.2.1"', 'id = "1.1.1"', "two entries have the id 1.1.1"),
        ('id = "1.2.1"', 'id = "1.3.1"', "task 1.3.1 belongs to no day"),
        ('id = "1.2.1"', 'id = "twelve"', "not have the form W.D.N"),
        ('title = "twice"', 'titel = "twice"', "unexpected keyword argument 'titel'"),
        ('title = "twice"\n', "", "missing 1 required positional argument: 'title'"),
        ('symbols = ["twice"]', 'symbols = "twice"', "symbols must be a list of strings"),
        ('symbols = ["twice"]', "symbols = [", "is not valid TOML"),
    ],
)
def test_a_malformed_manifest_is_one_line(tree, old, new, says):
    edit(tree, "course.toml", old, new)
    with pytest.raises(UserError) as error:
        load_course(tree)
    assert says in str(error.value)


def test_a_class_stands_for_its_methods_unless_another_task_names_one(tree):
    edit(tree, "course.toml", 'symbols = ["twice"]', 'symbols = ["twice", "Counter.step"]')
    assert reference_sources(load_course(tree))["sums.py"].task_ids() == {
        "twice": "1.1.1",
        "Counter.step": "1.1.1",
        "Counter.__init__": "1.2.1",
    }


@pytest.mark.parametrize(
    ("symbols", "says"),
    [
        ('["Counter", "thrice"]', "sums.py has no public 'thrice'"),
        ('["Counter", "twice"]', "twice of sums.py is owned by more than one task"),
        ("[]", "Counter.__init__ does not belong to a task of course.toml: move it to tiny_llm_lab"),
    ],
)
def test_wrong_symbols_are_complained_of(tree, symbols, says):
    edit(tree, "course.toml", 'symbols = ["Counter"]', f"symbols = {symbols}")
    (complaint,) = complaints(load_course(tree))
    assert says in complaint


def test_what_is_missing_or_untrue_is_complained_of(tree):
    edit(
        tree,
        "course.toml",
        'symbols = ["twice"]',
        'symbols = ["twice"]\nlines = 30\ngrows = ["Counter", "thrice"]',
    )
    found = complaints(load_course(tree))
    assert 'task 1.1.1: it needs a hint: add hints = ["..."]' in found
    assert "task 1.1.1: grows 'Counter', which is not from an earlier task: correct the name" in found
    assert "task 1.1.1: grows 'thrice', which no task owns: correct the name" in found
    assert "task 1.2.1: it needs the length of its answer: add lines = 3" in found


def test_a_misleading_number_of_lines_is_complained_of(tree):
    edit(tree, "course.toml", 'symbols = ["twice"]', 'symbols = ["twice"]\nlines = 30')
    fault = "task 1.1.1: lines = 30, but the reference's answer has 1: correct it"
    assert fault in complaints(load_course(tree))


def test_a_task_of_fewer_than_three_known_mistakes_is_complained_of(tree):
    path = tree / "tests/known_mistakes.toml"
    mistake = '[["1.1.1".twice]]\nsays = "s"\nfind = "2 * x"\nswap = "x"\n'
    path.write_text(mistake * 2)
    cure = "fewer than 3: add one that its tests reject"
    fault = f"task 1.1.1: tests/known_mistakes.toml has 2 of its mistakes, {cure}"
    assert fault in complaints(load_course(tree))
    path.write_text(mistake * 3)
    found = complaints(load_course(tree))
    assert not any("1.1.1: tests/known" in fault for fault in found)
    # Those of another task do not count.
    assert fault.replace("1.1.1", "1.2.1").replace("has 2", "has 0") in found


def test_no_answer_calls_what_a_later_day_adds_to_a_class():
    """The class may be a learner's own by then: no part of the reference's fits, and all tests would fail."""
    course, days = load_course(), dict[str, set[str]]()
    task_of = {name: task for source in exercises(course).values() for name, task in source.task_of.items()}
    for name, task in task_of.items():
        days.setdefault(name.rpartition(".")[0], set()).add(task.day_id)
    for caller in course.tasks:
        for name in (each for each in caller.calls if "." in each):
            day = task_of[name].day_id
            is_begun = any(course.is_later(day, than=each) for each in days[name.rpartition(".")[0]])
            assert not (is_begun and course.is_later(day, than=caller.day_id)), f"{caller.id} calls {name}"


def test_a_function_belongs_to_the_task_that_its_first_line_names():
    course, named = load_course(), re.compile(r"\((?:from )?task ([\d.]+) on\)\.?$")
    for source in exercises(course).values():
        for name, task in source.task_of.items():
            line = (ast.get_docstring(source.functions[name].node) or "").partition("\n")[0]
            if begins := named.search(line):
                assert task.id == begins[1], name


def test_a_kernel_counts_as_part_of_the_answer_and_must_have_one(tree):
    edit(
        tree,
        "course.toml",
        'symbols = ["twice"]',
        'symbols = ["twice"]\nkernel = "kernels/twice.metal"\nlines = 3',
    )
    fault = "task 1.1.1: kernels/twice.metal has an empty part `BEGIN task 1.1.1`: write the answer there"
    assert fault in complaints(load_course(tree))
    kernel = tree / "src/tiny_llm_ref/kernels/twice.metal"
    kernel.parent.mkdir()
    kernel.write_text("uint i;\n// BEGIN task 1.1.1\n// why\n\nx[i] *= 2;\ny = x;\n// END task 1.1.1\n")
    assert fault not in complaints(load_course(tree))
    assert answer_lines(load_course(tree))["1.1.1"] == 3


def test_a_task_may_be_a_kernel_alone(tree):
    rest = 'kernel = "kernels/twice.cpp"\nlines = 3\nhints = ["h"]\n'
    edit(
        tree, "course.toml", 'file = "sums.py"\nsymbols = ["twice"]', f'symbols = ["twice", "thrice"]\n{rest}'
    )
    answer = "class Counter:\n    def step(self):\n        return 1\n"
    (tree / "src/tiny_llm_ref/sums.py").write_text(answer)
    kernel = tree / "src/tiny_llm_ref/kernels/twice.cpp"
    kernel.parent.mkdir()
    kernel.write_text(GROWING["kernel.cpp"])
    assert answer_lines(load_course(tree))["1.1.1"] == 3
    own = [fault for fault in complaints(load_course(tree)) if "1.1.1" in fault]
    assert not any("symbols" in fault or "lines" in fault for fault in own)
    kernel.write_text(GROWING["kernel.cpp"].replace("float thrice(", "float four_times("))
    fault = "task 1.1.1: its symbols are ['twice', 'thrice'], but the marks in kernels/twice.cpp are in "
    assert f"{fault}['twice', 'four_times']" in complaints(load_course(tree))


# A file as it stands before later tasks add to it, and what a chapter shows of that


GROWN = [
    Growth("1.2.1", "Model.call", "cache"),
    Growth("2.1.1", "Model.__init__", "fast"),
    Growth("2.1.1", "Model.call", "cache", before="Cache | None"),
    Growth("2.1.2", "Model.call", "offset", before="int"),
]


def test_what_later_tasks_add_leaves_the_starter():
    assert in_starter(ANSWER, GROWN) == STARTER
    assert in_starter(STARTER, []) == STARTER


def test_between_two_tasks_a_parameter_has_the_type_of_the_first():
    text = as_of(ANSWER, GROWN, lambda task: task <= "1.2.1")
    assert "offset: int = 0, cache: Cache | None = None, *, keep: int | None = None\n" in text
    assert "From task 1.2.1 on: `cache` is used." in text and "cores" not in text
    assert "From task 2.1.2 on: nothing more." in as_of(ANSWER, GROWN, lambda task: task == "2.1.2")
    ast.parse(text)


def course_with(folder, sums):
    return load_course(write_files(folder, GROWING | {"src/tiny_llm_ref/sums.py": sums}))


def test_a_chapter_shows_what_is_new(tmp_path):
    signatures = Signatures(course := course_with(tmp_path, SUMS))
    assert [signatures.is_needed(day) for day in course.days] == [False, True]
    assert signatures.shown(course.day("2.1")) == GROWING["shown.md"]
    assert 'def twice(x: int, *, of: int = 0) -> float:\n    """Twice x."""\n' in starter(course)["sums.py"]


@pytest.mark.parametrize(("added", "is_folded"), [(20, False), (21, True)])
def test_a_long_block_is_folded(tmp_path, added, is_folded):
    """The block has 10 lines and what is added."""
    says = "`n` times x." + "\n    A line." * added + "\n    "
    shown = Signatures(course := course_with(tmp_path, SUMS.replace("`n` times x.", says))).shown(
        course.day("2.1")
    )
    before, code, after = shown.replace("```python", "```").split("```")
    assert len(code.strip().splitlines()) == 10 + added
    summary = f"<details><summary>What task 2.1.1 extends, {10 + added} lines</summary>"
    assert (summary in before and after == "\n\n</details>\n") == is_folded
