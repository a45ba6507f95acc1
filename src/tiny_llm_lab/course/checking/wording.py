"""The reference with other words in its errors, which the tests of the weeks must not notice."""

import ast
import re
from collections.abc import Iterator

from tiny_llm_lab.course.checking.sandbox import Trial, run_trials, settled
from tiny_llm_lab.course.exercises import reference_sources
from tiny_llm_lab.course.manifest import Course

_LIMIT_S = 900.0
_WORD = re.compile(r"[A-Za-z]+")
_QUOTED = re.compile(r"`+([^`]+)`+|\"([^\"]+)\"")
_OTHER = "other"
_Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def wording_faults(course: Course) -> Iterator[str]:
    """Tests that demand a word of an error that no docstring around its `raise` quotes."""
    changed = {
        name: reworded(source.text) for name, source in reference_sources(course).items() if source.task_of
    }
    weeks = dict.fromkeys(day.id.partition(".")[0] for day in course.days)
    tasks = [[task for day in course.week(int(week)) for task in day.tasks] for week in weeks]
    trials = [
        Trial(
            *(course.root, course.reference, course.reference.name, changed),
            (*course.test_files(each), "--solution", "ref", "--week", week),
        )
        for week, each in zip(weeks, tasks, strict=True)
    ]
    for week, result in zip(weeks, run_trials(trials, _LIMIT_S), strict=True):
        found = settled(result, _LIMIT_S)
        if found.error is not None:
            yield f"week {week}: {found.error}"
        yield from (f"{test.test}: {test.headline}" for test in found.having("failed"))


def reworded(source: str) -> str:
    """A file whose errors say other words than those that the docstrings around a `raise` quote."""
    tree = ast.parse(source)
    _Rewording().visit(tree)
    return ast.unparse(tree) + "\n"


class _Rewording(ast.NodeTransformer):
    """Changes the texts in `raise` statements."""

    def __init__(self) -> None:
        self._kept = frozenset[str]()
        self._is_raised = False

    def visit(self, node: ast.AST) -> ast.AST:
        before = self._kept, self._is_raised
        if isinstance(node, _Documented):
            quoted = _QUOTED.findall(ast.get_docstring(node) or "")
            self._kept |= {word for parts in quoted for part in parts for word in _WORD.findall(part)}
        self._is_raised = self._is_raised or isinstance(node, ast.Raise)
        changed: ast.AST = super().visit(node)
        self._kept, self._is_raised = before
        return changed

    def visit_FormattedValue(self, node: ast.FormattedValue) -> ast.AST:
        self.visit(node.value)
        return node  # its format is no text

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if self._is_raised and isinstance(node.value, str) and not node.value.startswith("task "):
            node.value = _WORD.sub(lambda word: word[0] if word[0] in self._kept else _OTHER, node.value)
        return node
