"""The known-mistake run: what is caught, missed, stale or no mistake at all."""

import dataclasses

import pytest

from tiny_llm_lab.course.manifest import load_course
from tiny_llm_lab.course.mistake import Mistake
from tiny_llm_lab.types import UserError
from tools.checking.mistakes import Verdict, try_mistakes

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
