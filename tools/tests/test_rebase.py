"""Code is found by symbol and tree, replaced where it is, and followed by known mistakes."""

import ast
import dataclasses

import pytest
from tests.helpers.trees import course_files

from tiny_llm_lab.course.code_tree import CodeTree, Edit
from tiny_llm_lab.course.manifest import Mistake, load_course
from tiny_llm_lab.types import UserError
from tools.checking.mistakes import Verdict, try_mistakes
from tools.checking.rebase import rebase, same_edit

SOURCE = course_files("rebased")["source.py"]
LOOP = "for _ in range(2):\n    self.n += 1"
INNER_LOOP = LOOP.replace("\n", "\n        ")
CASE = "if len(rows) > LIMIT: return -1"
ELIF = "elif len(rows) > LIMIT:\n        return -1"


def edited(symbol, find, swap):
    edit = Edit(symbol, find, swap)
    [place] = edit.places(SOURCE)
    return edit.made_at(SOURCE, place)


@pytest.mark.parametrize("find", ["sum(rows, 0)", "sum(\n  rows,\n (0), )  # of all", "return sum(rows,0)"])
def test_layout_makes_no_difference(find):
    swap = "return rows[0]" if "return" in find else "rows[0]"
    assert ast.unparse(ast.parse(edited("total", find, swap))).count("return rows[0]") == 1


@pytest.mark.parametrize(
    ("symbol", "find", "count"),
    [
        ("Counter.step", "self.n += 1", 2),
        ("Counter", "self.n += 1", 2),
        ("total", "self.n += 1", 0),
        ("total", "len(rows)", 1),  # not the one in the f-string
        ("total", "'é'", 1),
        ("", "LIMIT", 2),
        ("total", "LIMIT", 1),
        ("missing", "LIMIT", 0),
        ("Counter.twice", "@property\ndef twice(self): return self.n * 2", 1),
    ],
)
def test_it_is_looked_for_in_its_symbol(symbol, find, count):
    assert len(Edit(symbol, find, "pass").places(SOURCE) or Edit(symbol, find, "0").places(SOURCE)) == count


@pytest.mark.parametrize(
    ("symbol", "find", "swap", "right", "wrong"),
    [
        ("Counter.twice", "self.n", "self.n + 1", "self.n * 2", "(self.n + 1) * 2"),
        ("total", "(row for row in rows)", "[1]", "sum(row for row in rows)", "sum([1])"),
        ("total", "return -1", "", "return -1", "pass"),
        ("Counter.step", LOOP, "", INNER_LOOP, ""),
        ("Counter.step", LOOP, "while True:\n  pass", INNER_LOOP, "while True:\n            pass"),
        ("total", CASE, "", ELIF, ""),
        ("total", CASE, "rows = []", ELIF, "else:\n        rows = []"),
    ],
)
def test_the_rest_stays(symbol, find, swap, right, wrong):
    wanted = ast.parse(SOURCE.replace(right, wrong))
    assert ast.dump(ast.parse(edited(symbol, find, swap))) == ast.dump(wanted)


def test_what_is_no_code_is_refused():
    with pytest.raises(SyntaxError):
        Edit("", "a +", "b")


def test_inner_symbols_come_first():
    assert list(CodeTree(SOURCE).names()) == ["total", "Counter.step", "Counter.twice", "Counter", ""]


HEAD = "# Two days.\n\n"
TWICE = '[["1.1.1".twice]]\nsays = "thrice"\nfind = "return 2 * x"\nswap = "return 3 * x"\n\n'
STEP = '# The counter\n\n[["1.2.1"."Counter.step"]]\nsays = "by twos"\n'
STEP += 'find = "self.n += 1"\nswap = "self.n += 2"\n'


@pytest.fixture
def toml(tree):
    path = tree / "tests/known_mistakes.toml"
    path.write_text(HEAD + TWICE + STEP)
    return path


def rebased(tree, right, new):
    """What is said when the reference changes."""
    path = tree / "src/tiny_llm_ref/sums.py"
    path.write_text(path.read_text().replace(right, new))
    return list(rebase(load_course(tree)))


def test_what_fits_stays(tree, toml):
    assert rebased(tree, "return 2 * x", "return (2  *  x)  # why") == []
    assert toml.read_text() == HEAD + TWICE + STEP


def test_a_mistake_follows_its_code(tree, toml):
    said = rebased(tree, "self.n += 1", "self.count.n += 1")
    assert said == ["moved  1.2.1  by twos: 'self.count.n += 1' -> 'self.count.n += 2'"]
    assert toml.read_text() == HEAD + TWICE + STEP.replace("self.n", "self.count.n")
    assert rebased(tree, "", "") == []


def test_it_follows_to_another_symbol(tree, toml):
    rebased(tree, "def step(", "def advance(")
    assert toml.read_text() == HEAD + TWICE + STEP.replace("Counter.step", "Counter.advance")


def test_it_follows_to_another_file(tree, toml):
    path = tree / "src/tiny_llm_ref/sums.py"
    counter = path.read_text().partition("class ")[2]
    (path.parent / "counting.py").write_text(f"class {counter}")
    rebased(tree, f"class {counter}", "")
    assert toml.read_text() == HEAD + TWICE + STEP.replace("Counter.step", "counting.py:Counter.step")


@pytest.mark.parametrize(
    "new",
    [
        "self.n += 2",  # the edit meets the change
        "self.n += 1\n        self.n += 1",  # which of both?
        "print()",  # nothing like it
    ],
)
def test_what_is_not_clear_is_left(tree, toml, new):
    assert rebased(tree, "self.n += 1", new) == ["left   1.2.1  by twos"]
    assert toml.read_text() == HEAD + TWICE + STEP


@pytest.mark.parametrize(
    ("find", "swap", "new", "wrong"),
    [
        ("f(x, axis=-1)", "f(x, axis=0)", "g(self.x, axis=-1)", "g(self.x, axis=0)"),
        ("x = f(a, b)", "x = f(b, a)", "y = f(a, b)", "y = f(b, a)"),
        ("x = f(a, b)", "x = f(b, a)", "x = f(c, b)", None),
        ("self.f(x)", "pass", "self.g.f(x)", "pass"),
        ("self.f(x)", "", "self.g.f(x)", ""),
        (
            "min(size, len(rows))",
            "size",
            "min(settings.size, len(rows))",
            None,
        ),  # a name that is another one now
        ("(row.num_tokens, 1)", "(row.offset, 1)", "(row.answer.num_tokens, 1)", None),  # whose offset?
    ],
)
def test_the_same_edit(find, swap, new, wrong):
    assert same_edit(find, swap, new) == wrong


# The known-mistake run: what is caught, missed, stale or no mistake at all


WRONG = Mistake("one is added", "sums.py", "return 2 * x", "return 2 * x + 1", task="1.1.1")


def test_every_kind_of_verdict(tree):
    mistakes = [
        WRONG,
        dataclasses.replace(WRONG, swap="return x + x"),
        dataclasses.replace(WRONG, swap="return 2 * y"),
        dataclasses.replace(WRONG, swap='raise NotImplementedError("task 1.1.1")'),
        Mistake("counts by twos", "sums.py", "self.n += 1", "self.n += 2", task="1.2.1"),
    ]
    findings = list(try_mistakes(load_course(tree), mistakes))
    caught, missed, invalid = Verdict.CAUGHT, Verdict.MISSED, Verdict.INVALID
    assert [f.verdict for f in findings] == [caught, missed, invalid, invalid, caught]
    assert findings[0].by == "test_twice"
    assert findings[1].by == "1 tests pass"
    assert findings[2].by.startswith("NameError")


def test_kernels_that_do_not_compile_show_nothing(tree):
    build = "tiny_llm_lab.runtime.native.compiling.build"
    swap = f'from {build} import CompileError; raise CompileError("the C++ compiler failed")'
    [finding] = try_mistakes(load_course(tree), [dataclasses.replace(WRONG, swap=swap)])
    assert finding.verdict is Verdict.INVALID and "compiler" in finding.by


@pytest.mark.long
def test_an_endless_loop_is_stopped_and_the_run_goes_on(tree):
    loop = dataclasses.replace(WRONG, swap="\n    while True: pass")
    findings = list(try_mistakes(load_course(tree), [loop, loop, WRONG], limit_s=3))
    assert [finding.by for finding in findings] == ["the time limit", "the time limit", "test_twice"]
    assert {finding.verdict for finding in findings} == {Verdict.CAUGHT}


def test_a_task_that_only_extends_is_tested_by_its_day(tree):
    manifest = tree / "course.toml"
    extra = '\n[[task]]\nid = "1.1.2"\ntitle = "t"\nfile = "sums.py"\nsymbols = []\ngrows = ["twice"]\n'
    manifest.write_text(manifest.read_text() + extra)
    findings = list(try_mistakes(load_course(tree), [dataclasses.replace(WRONG, task="1.1.2")]))
    assert findings[0].verdict is Verdict.CAUGHT


@pytest.mark.parametrize("find", ["return 3 * x", "self.n"])
def test_a_stale_mistake_is_an_error(tree, find):
    stale = dataclasses.replace(WRONG, find=find, swap="pass")
    with pytest.raises(UserError, match=r"stale mistake of task 1\.1\.1"):
        list(try_mistakes(load_course(tree), [stale]))


def test_what_is_no_code_is_an_error(tree):
    with pytest.raises(UserError, match="is not valid Python: invalid syntax"):
        list(try_mistakes(load_course(tree), [dataclasses.replace(WRONG, swap="return 2 *")]))


def test_the_file_of_known_mistakes(tree):
    course = load_course(tree)
    assert course.mistakes() == []
    path = tree / "tests" / "known_mistakes.toml"
    row = 'says = "s"\nfind = "a"\nswap = "b"\n'
    places = ["twice", '"sums.py"', '"more/sums.py:Sum.add"', '"kernels/sums.cpp"']
    path.write_text("".join(f'[["1.1.1".{place}]]\n{row}' for place in places))
    of = dataclasses.replace(WRONG, says="s", find="a", swap="b")
    assert course.mistakes() == [
        dataclasses.replace(of, symbol="twice"),
        of,
        dataclasses.replace(of, file="more/sums.py", symbol="Sum.add"),
        dataclasses.replace(of, file="kernels/sums.cpp"),
    ]
    path.write_text(f'[["1.1.1".twice]]\n{row}why = "no such key"\n')
    with pytest.raises(UserError, match=r"\[\[1\.1\.1\.twice\]\] s: .*unexpected keyword argument 'why'"):
        course.mistakes()
    path.write_text(f'[["1.1.1"]]\n{row}')
    with pytest.raises(UserError, match=r"'1\.1\.1': a mistake is a table"):
        course.mistakes()
