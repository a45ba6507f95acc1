"""The known-mistake run: what is caught, missed, stale or no mistake at all."""

import dataclasses
from pathlib import Path

import pytest

from tiny_llm_lab.course.checking.mistakes import Verdict, try_mistakes
from tiny_llm_lab.course.manifest import Mistake, load_course
from tiny_llm_lab.types import UserError

WRONG = Mistake("one is added", "sums.py", "return 2 * x", "return 2 * x + 1", task="1.1.1")


def test_every_kind_of_verdict(tree: Path) -> None:
    mistakes = [
        WRONG,
        dataclasses.replace(WRONG, swap="return x + x"),
        dataclasses.replace(WRONG, swap="return 2 *"),
        dataclasses.replace(WRONG, swap="return 2 * y"),
        dataclasses.replace(WRONG, swap='raise NotImplementedError("task 1.1.1")'),
        Mistake("counts by twos", "sums.py", "self.n += 1", "self.n += 2", task="1.2.1"),
    ]
    findings = list(try_mistakes(load_course(tree), mistakes))
    caught, missed, invalid = Verdict.CAUGHT, Verdict.MISSED, Verdict.INVALID
    assert [f.verdict for f in findings] == [caught, missed, invalid, invalid, invalid, caught]
    assert findings[0].by == "test_twice"
    assert findings[1].by == "1 tests pass"
    assert findings[2].by.startswith("SyntaxError")


def test_kernels_that_do_not_compile_show_nothing(tree: Path) -> None:
    build = "tiny_llm_lab.runtime.native.compiling.build"
    swap = f'from {build} import CompileError; raise CompileError("the C++ compiler failed")'
    [finding] = try_mistakes(load_course(tree), [dataclasses.replace(WRONG, swap=swap)])
    assert finding.verdict is Verdict.INVALID and "compiler" in finding.by


@pytest.mark.long
def test_an_endless_loop_is_stopped_and_the_run_goes_on(tree: Path) -> None:
    loop = dataclasses.replace(WRONG, swap="\n    while True: pass")
    findings = list(try_mistakes(load_course(tree), [loop, loop, WRONG], limit_s=3))
    assert [finding.by for finding in findings] == ["the time limit", "the time limit", "test_twice"]
    assert {finding.verdict for finding in findings} == {Verdict.CAUGHT}


def test_a_task_that_only_extends_is_tested_by_its_day(tree: Path) -> None:
    manifest = tree / "course.toml"
    extra = '\n[[task]]\nid = "1.1.2"\ntitle = "t"\nfile = "sums.py"\nsymbols = []\ngrows = ["twice"]\n'
    manifest.write_text(manifest.read_text() + extra)
    findings = list(try_mistakes(load_course(tree), [dataclasses.replace(WRONG, task="1.1.2")]))
    assert findings[0].verdict is Verdict.CAUGHT


@pytest.mark.parametrize("find", ["return 3 * x", "self"])
def test_a_stale_mistake_is_an_error(tree: Path, find: str) -> None:
    stale = dataclasses.replace(WRONG, find=find)
    with pytest.raises(UserError, match=r"stale mistake of task 1\.1\.1"):
        list(try_mistakes(load_course(tree), [stale]))
