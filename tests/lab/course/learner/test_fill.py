"""`stubs --fill-before`: earlier days have answers, a learner's work stays, and the day named is next."""

from unittest.mock import Mock

import pytest
from tests.helpers.trees import edit

from tiny_llm_lab.cli.dispatch import main
from tiny_llm_lab.course.exercises import exercises
from tiny_llm_lab.course.manifest import load_course
from tiny_llm_lab.course.record.record import RECORD, Outcome, Record, load_record, save_record
from tiny_llm_lab.course.record.standing import State, open_desk
from tiny_llm_lab.course.source import Source
from tiny_llm_lab.course.starter import stubs
from tiny_llm_lab.course.starter.filling import Asked, Filled, _lines, filled
from tiny_llm_lab.course.starter.reset import _without_answers

SUMS = "src/tiny_llm/sums.py"
STUB = 'raise NotImplementedError("task 1.1.1")'


def fill(untouched, capsys, day):
    """The file and what was said."""
    capsys.readouterr()
    assert main(["stubs", "--fill-before", day]) == 0
    return (untouched / SUMS).read_text(), capsys.readouterr().err


def test_files_of_days_that_are_all_given_are_those_of_the_reference():
    course = load_course()
    wanted = stubs.starter(course)
    for name, source in exercises(course).items():
        if source.task_of:
            done = filled(wanted[name], source, wanted[name], Asked(list(source.task_of)))
            assert done.text == source.text and not done.left and not done.replaced, name


def test_later_days_stay_to_do(untouched, capsys):
    text, said = fill(untouched, capsys, "1.2")
    assert 'raise NotImplementedError("task 1.2.1")' in text
    assert 'raise NotImplementedError("task 2.1.1")' in text
    assert "return _product(x, _TIMES)" in text and "# How often.\n_TIMES = 2\n" in text
    assert "_sum" not in text and "import math" not in text, "they come with a later task's answer"
    assert '"task 1.2.1"' in (untouched / "src/tiny_llm/kernels/sum.cpp").read_text()
    assert said == "the days before 1.2 have their answers\n"
    text, said = fill(untouched, capsys, "2.1")
    assert "self.parts.extend(items)" in text, "what was given before was not edited"
    kernel = (untouched / "src/tiny_llm/kernels/sum.cpp").read_text()
    assert "return n;" in kernel and "return -n;" not in kernel
    assert not list(untouched.rglob("*.backup*"))


@pytest.mark.parametrize(
    ("own", "body", "kept"),
    [
        ("", "return x + x", ["return x + x"]),
        ("import math\nfrom os import path as deque\n", "return x + x", ["as deque", "as deque_given"]),
        ("_TIMES = 7\n", "return x * _TIMES - 5 * x", ["_TIMES = 7", "x * _TIMES - 5"]),
        (
            "def _sum(x):\n    return 2 * x\n",
            "return _sum(x)",
            ["def _sum_given(self)", "2 * x"],
        ),
        ("# Think of zero.\n", STUB, ["# Think of zero.", "_product(x, _TIMES)"]),
    ],
)
def test_what_is_written_stays_with_its_imports_and_helpers(untouched, capsys, own, body, kept):
    """Whatever it is called: the answer's helper or import of the same name gets another."""
    path = untouched / SUMS
    text = path.read_text().replace(STUB, body, 1)
    path.write_text(text.replace("\n\n\ndef twice", f"\n{own}\n\ndef twice", 1))
    text, _ = fill(untouched, capsys, "2.1")
    assert all(each in text for each in kept), text
    assert "self.parts.extend(items)" in text and not list(untouched.rglob("*.backup*"))
    namespace = {}
    exec(text, namespace)
    total = namespace["Total"]()
    assert (namespace["twice"](4), total.add([1, 2])) == (8, 3)
    assert open_desk().standing.next_task.id == "2.1.2", "the day that was named"


def test_a_file_that_is_not_python_is_given_and_kept(untouched, capsys):
    path = untouched / SUMS
    path.write_text(path.read_text() + "def broken(:\n")
    text, said = fill(untouched, capsys, "2.1")
    assert "self.parts.extend(items)" in text and "broken(:" in path.with_name("sums.py.backup1").read_text()
    assert "sums.py: all of it given" in said


@pytest.mark.parametrize("key", ["", 'needed = ["Total"]'])
def test_a_method_that_does_not_fit_the_learners_class(untouched, capsys, key):
    """It is left, or where later days need it the class is given as a whole."""
    if key:
        edit(untouched, "course.toml", 'title = "adding up"\n', f'title = "adding up"\n{key}\n')
    edit(untouched, "course.toml", '"Total.__init__"', '"Total"')
    edit(untouched, SUMS, f"None:\n        {STUB}", "None:\n        self._numbers = []")
    text, said = fill(untouched, capsys, "2.1")
    assert ("self.parts.extend(items)" in text, "self._numbers" in text) == (bool(key), not key)
    if key:
        assert "Total.__init__ given as later days need it; your version is in sums.py.backup1" in said
    else:
        assert "Total.add (1.2.1) left to write: the answer needs the given" in said and "reset 1.1.1" in said
    assert open_desk().standing.next_task.id == "2.1.2"


STEP = """\
from dataclasses import dataclass


@dataclass
class Step:
    number: int
{fields}
    def read(self):
        {read}


def launch(number):
    {launch}
"""


@pytest.mark.parametrize(
    ("fields", "left"), [("    _own: list\n", ["Step.read"]), ("", []), ("    _parts: list\n", [])]
)
def test_the_fields_of_an_own_class_get_no_others_beside_them(fields, left):
    """The learner's `launch` would make it without them. One without fields of its own may get all."""
    given = {
        "fields": "    _parts: list\n",
        "read": "return self._parts",
        "launch": "return Step(number, [1])",
    }
    task = Mock(id="1.1.1")
    answer = Source(STEP.format(**given), dict.fromkeys(("Step.read", "launch"), task))
    own = STEP.format(fields=fields, read=STUB, launch="return Step(number, [2])" if fields else STUB)
    starter = STEP.format(fields="", read=STUB, launch=STUB)
    result = filled(own, answer, starter, Asked(["Step.read", "launch"]))
    assert (result.left, "_parts" in result.text) == (left, not left)
    namespace = {}
    exec(result.text, namespace)
    assert namespace["launch"](5).number == 5


def test_a_function_that_is_left_names_the_class_whose_fields_it_needs():
    """And a task of that class to reset: resetting the function's own would give nothing."""
    first, second = Mock(id="1.1.1"), Mock(id="1.2.1")
    text = STEP.format(fields="    _parts: list\n", read="return 1", launch="return Step(number, [])._parts")
    source = Source(text, {"Step.read": first, "launch": second})
    results = {"steps.py": Filled(text, left=["launch"])}
    (line,) = _lines(Mock(tasks=[first, second]), {"steps.py": source}, results, {})
    assert "launch (1.2.1) left to write: the answer needs the given Step." in line
    assert "reset 1.1.1`" in line


def test_a_reset_class_has_no_own_fields_left():
    """Or the answers would fit it no more than before the reset."""
    starter = STEP.format(fields="", read=STUB, launch=STUB)
    own = STEP.format(fields="    _own: list\n", read=STUB, launch="return Step(number, [2])")
    assert _without_answers(Source(own), ["Step.read", "launch"], Source(starter)).text == starter


def test_what_only_a_given_helper_sets_is_not_there(untouched, capsys):
    answer, total = "src/tiny_llm_ref/sums.py", "self._last += sum(self.parts)\n        return self._last"
    edit(untouched, answer, "self.parts = deque[int]()", "self.parts, self._last = deque[int](), 0")
    edit(untouched, answer, "return sum(self.parts)", total)
    edit(untouched, SUMS, f"None:\n        {STUB}", "None:\n        self.parts = []")
    text, said = fill(untouched, capsys, "2.1")
    assert "Total.add (1.2.1) left to write" in said and "self._last" not in text


def test_what_a_skipped_task_extends_stays_or_is_given(untouched, capsys):
    edit(untouched, SUMS, f'"""Twice x."""\n    {STUB}', "return x + x")
    task, day = '[[task]]\nid = "1.1.1"', '[[day]]\nid = "2.2"\ntitle = "4"\nchapter = "4.md"\n'
    edit(untouched, "course.toml", task, day + task)
    text, said = fill(untouched, capsys, "2.2")
    assert (
        "return x + x" in text
        and "yours stay as they are, without" in said
        and ": twice (2.1.1, 2.1.2)\n" in said
    )
    edit(untouched, "course.toml", 'title = "twice more"\n', 'title = "twice more"\nneeded = ["twice"]\n')
    text, said = fill(untouched, capsys, "2.2")
    assert "return _product(x, _TIMES)" in text and "twice given as later days need it" in said


def said_by(capsys, *command):
    capsys.readouterr()
    assert main([*command]) == 0
    return capsys.readouterr().out


def test_the_course_begins_at_the_day_that_was_named(untouched, capsys):
    assert said_by(capsys, "status").splitlines()[0] == "→ 1.1  ○   One"
    main(["stubs", "--fill-before", "2.1"])
    first, second, third, _, legend, given, _, count, after = said_by(capsys, "status").splitlines()
    assert (first, second, third) == ("  1.1  –   One", "  1.2  –   Two", "→ 2.1  ·○  Three")
    assert given == "– given, or skipped, by stubs --fill-before: 2 tasks" and "given" not in legend
    assert count == "0 of 4 tasks passed"
    assert after.startswith("next: 2.1.2 ")


def test_an_answer_that_was_changed_is_the_learners(untouched, capsys):
    main(["stubs", "--fill-before", "1.2"])
    edit(untouched, SUMS, "_product(x, _TIMES)", "_product(_TIMES, x)")
    assert said_by(capsys, "status").splitlines()[0] == "→ 1.1  ◐   One"


def test_what_was_graded_counts_as_graded(untouched, capsys):
    main(["stubs", "--fill-before", "1.2"])
    record = load_record(untouched)[0]
    outcome = Outcome(2, 0, 0, ran_all=True, source=record.given["1.1.1"], at="now")
    save_record(untouched, record.with_outcomes({"1.1.1": outcome}))
    first, *_, count, _ = said_by(capsys, "status").splitlines()
    assert (first, count) == ("  1.1  ✓   One", "1 of 4 tasks passed")
    failed = Outcome(0, 2, 0, ran_all=True, source=record.given["1.1.1"], at="now")
    save_record(untouched, record.with_outcomes({"1.1.1": failed}))
    assert said_by(capsys, "status").splitlines()[0] == "→ 1.1  ✗   One"


def test_a_task_that_failed_is_skipped_too(untouched, capsys):
    edit(untouched, SUMS, f'"""Twice x."""\n    {STUB}', "return 3 * x")
    failed = Outcome(0, 1, 0, ran_all=True, source="of before", at="now")
    save_record(untouched, Record().with_outcomes({"1.1.1": failed}))
    fill(untouched, capsys, "2.1")
    assert open_desk().standing.next_task.id == "2.1.2"
    assert open_desk().standing.states["1.1.1"] is State.GIVEN


def test_a_record_of_before_is_read(tmp_path):
    save_record(tmp_path, Record(hints={"1.1.1": 1}))
    path = tmp_path / RECORD
    path.write_text(path.read_text().replace(',\n "given": {}', ""))
    assert "given" not in path.read_text()
    assert load_record(tmp_path) == (Record(hints={"1.1.1": 1}), "")


def test_what_is_reset_after_a_fill_has_nothing_of_the_answer_left(untouched, capsys):
    path, before = untouched / SUMS, (untouched / SUMS).read_text()
    fill(untouched, capsys, "2.1")
    assert main(["reset", "1.2"]) == 0
    assert "_sum" not in path.read_text() and "_product" in path.read_text()
    assert open_desk().standing.states["1.2.1"] is State.TODO
    assert main(["reset", "1.1.1"]) == 0
    assert path.read_text() == before


def test_a_given_method_goes_with_the_state_that_it_needs(untouched, capsys):
    """And is not to do: whoever takes one task back has not asked for the other."""
    edit(untouched, "src/tiny_llm_ref/sums.py", "self.parts = ", "self._parts = ")
    edit(untouched, "src/tiny_llm_ref/sums.py", "sum(self.parts)", "sum(self._parts)")
    edit(untouched, "src/tiny_llm_ref/sums.py", "self.parts.extend", "self._parts.extend")
    before = (untouched / SUMS).read_text()
    fill(untouched, capsys, "2.1")
    assert "1.2.1 to do again as well" in said_by(capsys, "reset", "1.1.1")
    assert (untouched / SUMS).read_text() == before
    states = open_desk().standing.states
    assert (states["1.1.1"], states["1.2.1"]) == (State.TODO, State.GIVEN)


def test_an_unwritten_function_that_is_taken_out_comes_back():
    starter = f"A = 1\n\n\ndef f():\n    {STUB}\n"
    done = filled("x = 3\n", Source(starter.replace(STUB, "return A")), starter, Asked(["f"]))
    assert done.text.split() == ["x", "=", "3", "A", "=", "1", "def", "f():", "return", "A"]


@pytest.mark.parametrize("extra", ["count: int = 0", "__slots__ = ()", "def __setattr__(self, *_): ..."])
def test_nothing_of_its_author_stays_in_a_class_that_is_given_as_a_whole(untouched, capsys, extra):
    edit(untouched, "course.toml", 'title = "adding up"\n', 'title = "adding up"\nneeded = ["Total"]\n')
    edit(untouched, SUMS, f"None:\n        {STUB}", f"None:\n        self._numbers = []\n\n    {extra}")
    text, namespace = fill(untouched, capsys, "2.1")[0], {}
    exec(text, namespace)
    assert extra not in text and namespace["Total"]().add([1, 2]) == 3


FORMS = ["@dataclass\nclass T:\n    n: int\n", "class B:\n    def __init__(s): ...\n\n\nclass T(B): ...\n"]


@pytest.mark.parametrize("own", [*FORMS, "from .mine import T\n", "class M: ...\n\n\nT = M\n"])
def test_what_is_there_in_another_form_stays(own):
    starter = f"class T:\n    def __init__(self):\n        {STUB}\n"
    assert filled(own, Source(starter.replace(STUB, "pass")), starter, Asked(["T.__init__"])).text == own
