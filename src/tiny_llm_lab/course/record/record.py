"""The record of grading, kept in the clone, and a learner's code for each task, with its hash."""

import ast
import hashlib
import json
import os
import re
import tempfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from tiny_llm_lab.course.exercises import Growth, functions_of, growths_of, one_line
from tiny_llm_lab.course.manifest import Course, Task
from tiny_llm_lab.course.source import Function, Source, kernel_answer
from tiny_llm_lab.runtime.checkout import text_of

RECORD = Path(".tiny-llm") / "progress.json"
_VERSION = 1


@dataclass(frozen=True)
class Outcome:
    """How one run of a task's tests ended: counts of tests, and the code and time of the run."""

    passed: int
    failed: int
    todo: int
    ran_all: bool  # whether every test of the task ran
    source: str  # `TaskSources.hash_of` at the time
    at: str  # ISO 8601, local time
    passed_at: str = ""  # when the task passed for the first time, "" = not yet

    @property
    def is_pass(self) -> bool:
        """Whether all tests of the task ran and passed. A skipped test is not a failure."""
        return self.ran_all and self.passed > 0 and not self.failed and not self.todo


@dataclass(frozen=True)
class Record:
    """By task id: outcomes, how many hints were shown, and the hash of the answer that was given.

    The hash is "" where `reset` has taken an answer back: no path leaves that task out.
    `drills` says of each drill that was answered, by its mistake's key, whether it was right once. `path` is
    the one that the learner takes, "whole", "short" or "bonus".
    """

    outcomes: Mapping[str, Outcome] = field(default_factory=dict)
    hints: Mapping[str, int] = field(default_factory=dict)
    given: Mapping[str, str] = field(default_factory=dict)
    drills: Mapping[str, bool] = field(default_factory=dict)
    path: str = "whole"

    def with_outcomes(self, new: Mapping[str, Outcome]) -> "Record":
        """The record after a run.

        A run of some tests only that found nothing wrong says less than a full run of the same code before
        it, which stays.
        """
        kept = dict(self.outcomes)
        for task, outcome in new.items():
            before = kept.get(task)
            first = before.passed_at if before else ""
            says_less = not outcome.ran_all and not outcome.failed and not outcome.todo
            if before and before.is_pass and says_less and before.source == outcome.source:
                continue
            kept[task] = replace(outcome, passed_at=first or (outcome.at if outcome.is_pass else ""))
        failed = [task for task, outcome in new.items() if outcome.failed]
        return replace(self.without_given(failed), outcomes=kept)

    def with_hints(self, task: str, shown: int) -> "Record":
        """The record after `shown` hints of a task."""
        return replace(self, hints={**self.hints, task: shown})

    def with_given(self, sources: Mapping[str, str]) -> "Record":
        """The record after tasks got their answers; `sources` has what `TaskSources.hash_of` says of each."""
        return replace(self, given={**self.given, **sources})

    def without_given(self, tasks: Collection[str]) -> "Record":
        """The record after these tasks turned out not to be answered by what was given."""
        kept = {task: source for task, source in self.given.items() if task not in tasks or not source}
        return replace(self, given=kept)

    def with_drill(self, key: str, is_right: bool) -> "Record":
        """The record after an answer to a drill: one that was right stays so."""
        return replace(self, drills={**self.drills, key: is_right or self.drills.get(key, False)})


def load_record(root: Path) -> tuple[Record, str]:
    """The record of the clone at `root`, and a line to tell where its file was not readable."""
    path = root / RECORD
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if data["version"] != _VERSION:
            raise ValueError(f"version {data['version']}")
        outcomes = {str(task): Outcome(**row) for task, row in data["outcomes"].items()}
        hints = {str(task): int(shown) for task, shown in data["hints"].items()}
        # An older record has no answers, and no drills.
        given = {str(task): str(source) for task, source in data.get("given", {}).items()}
        drills = {str(key): bool(is_right) for key, is_right in data.get("drills", {}).items()}
        taken = str(data.get("path", Record.path))
    except FileNotFoundError:
        return Record(), ""
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return Record(), f"cannot read {RECORD}: starting a new record"
    return Record(outcomes, hints, given, drills, taken), ""


def save_record(root: Path, record: Record) -> None:
    """Write the record in one piece: a reader finds the old one or the new one."""
    path = root / RECORD
    path.parent.mkdir(exist_ok=True)
    outcomes = {task: asdict(outcome) for task, outcome in record.outcomes.items()}
    rest = {"hints": dict(record.hints), "given": dict(record.given), "drills": dict(record.drills)}
    data = {"version": _VERSION, "path": record.path, "outcomes": outcomes, **rest}
    descriptor, unfinished = tempfile.mkstemp(dir=path.parent, prefix=f"{path.name}.")
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(json.dumps(data, indent=1) + "\n")
    Path(unfinished).replace(path)


@dataclass(frozen=True)
class Place:
    """A function of a task in a learner's file; `line` is where a stub's body is."""

    path: Path
    line: int
    signature: str = ""  # "" for C++ and Metal, and where the file does not parse
    is_written: bool = False


class TaskSources:
    """The files of src/tiny_llm, each read once. Nothing of them is imported."""

    def __init__(self, course: Course) -> None:
        self._course = course
        self._files: dict[str, Source] = {}

    def is_written(self, task: Task) -> bool:
        """Whether no stub is left of the task, or of the functions that it only extends.

        They must have the parameters that it adds. A file that is missing is not written.
        """
        files = [self._file(name).text for name in (*task.files, task.kernel) if name]
        is_stub_left = any(not text or _stub(task.id).search(text) for text in files)
        is_grown = self.has_own_parts(task) or self._has_grown(task)
        return not is_stub_left and is_grown and not self.missing_parameters(task)

    def missing_parameters(self, task: Task) -> list[Growth]:
        """Those that the task adds to functions of earlier ones, and that these do not have yet."""
        files = [name for each in self._course.tasks for name in each.files]
        parsed = [self._parsed(name) for name in dict.fromkeys(files) if name.endswith(".py")]
        functions = {name: function for each in parsed for name, function in each.items()}
        return [
            growth
            for growth in growths_of(task)
            if growth.before is None and growth.symbol in functions
            if growth.parameter not in functions[growth.symbol].parameter_names
        ]

    def has_own_parts(self, task: Task) -> bool:
        """Whether the task has functions or parts of kernels; otherwise it extends those of others."""
        return bool(task.symbols or task.also or task.kernel)

    def is_same(self, file: str, other: Function) -> bool:
        """Whether a file has a function of this name with the same code."""
        own = self._parsed(file).get(other.name)
        return own is not None and ast.unparse(own.node) == ast.unparse(other.node)

    def hash_of(self, task: Task) -> str:
        """Of the code that answers the task: comments and the layout of Python do not count.

        Private helpers count where the task's functions name them.
        """
        parts = []
        for name in task.files:
            file = self._file(name)
            functions = self._functions(task, name)
            parts.append(_code_of(file, functions) if functions else file.text)
        if task.kernel:
            text = self._file(task.kernel).text
            answer = kernel_answer(text, task.id)
            parts.append(text if answer is None else answer)
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]

    def places(self, task: Task) -> list[Place]:
        """Where the functions of a task are, in the order of their files."""
        results = []
        for name in task.files:
            path = self._course.starter / name
            for function in self._functions(task, name):
                stub = _stub(task.id).search(ast.unparse(function.node))
                line = function.first_body_line if stub else function.node.lineno
                signature = one_line(self._file(name).text, function)
                results.append(Place(path, line, signature, is_written=stub is None))
        if task.kernel:
            path = self._course.starter / task.kernel
            results += [Place(path, line) for line in _kernel_lines(self._file(task.kernel).text, task.id)]
        return results or [Place(self._course.starter / (task.file or task.kernel), 1)]

    def first_place(self, task: Task) -> Place:
        """The first function of a task that is still a stub, or else its first one."""
        places = self.places(task)
        return next((place for place in places if not place.is_written), places[0])

    def _has_grown(self, task: Task) -> bool:
        return all(
            not _stub(r"\d+\.\d+\.\d+").search(ast.unparse(each.node))
            for name in task.files
            for each in self._functions(task, name)
        )

    def _functions(self, task: Task, file: str) -> list[Function]:
        return functions_of(self._course, task, file, self._parsed(file).values())

    def _file(self, name: str) -> Source:
        if name not in self._files:
            self._files[name] = Source(text_of(self._course.starter / name))
        return self._files[name]

    def _parsed(self, name: str) -> Mapping[str, Function]:
        """The functions of a file; none where it isn't Python."""
        try:
            return self._file(name).functions
        except SyntaxError:
            return {}


def _code_of(source: Source, functions: Sequence[Function]) -> str:
    """The text of some functions and of all private definitions that they name, directly or not."""
    helpers = {each for function in functions for each in source.helpers(function.name)}
    by_name = sorted(helpers, key=lambda name: name.rpartition(".")[2])
    nodes: list[ast.stmt] = [each.node for each in functions]
    nodes += [source.definitions[name].node for name in by_name]
    return "\n".join(ast.unparse(node) for node in nodes)


def _stub(task_id: str) -> re.Pattern[str]:
    """What a stub says; `task_id` is a pattern, whose dots may stand for themselves alone in a stub."""
    return re.compile(rf"""["']task {task_id}["']""")


def _kernel_lines(text: str, task_id: str) -> list[int]:
    begins = re.compile(rf"//\s*BEGIN task {re.escape(task_id)}\b")
    return [number for number, line in enumerate(text.splitlines(), 1) if begins.search(line)]
