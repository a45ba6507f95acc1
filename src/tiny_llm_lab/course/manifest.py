"""The manifest: which days and tasks there are, which symbols each task owns, and known mistakes of them."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from tiny_llm_lab.course.code_tree import Edit
from tiny_llm_lab.course.toml_rows import built, read_toml
from tiny_llm_lab.runtime.checkout import repository, text_of
from tiny_llm_lab.runtime.console.talk import did_you_mean
from tiny_llm_lab.types import UserError

_FILE = re.compile(r"[\w/.]+\.(py|cpp|h|metal)")


@dataclass(frozen=True)
class Mistake:
    """A wrong version of a source file: `find`, which occurs once in `symbol` of `file`, becomes `swap`.

    In Python both are code, in other languages text. The tests of `task` must reject it.
    """

    says: str
    file: str
    find: str
    swap: str
    task: str
    symbol: str = ""  # "" for the whole file

    @cached_property
    def edit(self) -> Edit:
        """The same of code. Raises UserError when it is none."""
        try:
            return Edit(self.symbol, self.find, self.swap)
        except SyntaxError as error:
            raise UserError(f"the mistake ({self.says}) is not valid Python: {error}") from None

    def apply(self, path: Path) -> str:
        """The source at `path` with the mistake made. Raises UserError when it no longer fits."""
        source = text_of(path)
        if path.suffix != ".py":
            self._check_count(source.count(self.find))
            return source.replace(self.find, self.swap)
        places = self.edit.places(source)
        self._check_count(len(places))
        return self.edit.made_at(source, places[0])

    def _check_count(self, count: int) -> None:
        if count != 1:
            place = f"{self.symbol} of {self.file}" if self.symbol else self.file
            raise UserError(
                f"stale mistake of task {self.task} ({self.says}): its `find` occurs {count} times in "
                f"{place}, not once: fix it in known_mistakes.toml, or try `check --rebase`"
            )


def read_mistakes(path: Path, own_files: Mapping[str, str]) -> list[Mistake]:
    """The known mistakes in a file, in order. Raises UserError when it is malformed.

    A table `[[TASK.PLACE]]` has a task, and a symbol of the task's own file, which `own_files` names, a file,
    or "FILE:SYMBOL".
    """
    return list(mistakes_in(read_toml(path), path.name, own_files))


def mistakes_in(data: Mapping[str, object], name: str, own_files: Mapping[str, str]) -> Iterator[Mistake]:
    """As `read_mistakes`: of tables that have been read from a file of that name."""
    for task, places in data.items():
        for place, rows in places.items() if isinstance(places, dict) else [("", None)]:
            if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
                raise UserError(f'{name}: {task!r}: a mistake is a table [["TASK"."SYMBOL"]]')
            file, symbol = _place(place, own_files.get(task, ""))
            for row in rows:
                yield built(Mistake, {"file": file, "symbol": symbol, "task": task, **row}, f"{task}.{place}")


def _place(place: str, own_file: str) -> tuple[str, str]:
    """The file and the symbol that a table's name gives."""
    if _FILE.fullmatch(place):
        return place, ""
    file, _, symbol = place.rpartition(":")
    return file or own_file, symbol


@dataclass(frozen=True)
class Task:
    """One exercise: the symbols that are cut from the starter, and those of earlier tasks that it extends.

    A task without a `file` is C++ alone: its symbols are the functions of `kernel` that its marks stand in.
    """

    id: str
    title: str
    symbols: tuple[str, ...]
    file: str = ""
    grows: tuple[str, ...] = ()
    adds: tuple[str, ...] = ()  # new parameters of what it extends: "QwenModel.__call__(rows)"
    needed: tuple[str, ...] = ()  # what later answers use only as this task leaves it
    calls: tuple[str, ...] = ()  # later tasks' functions that its answer calls whatever it is asked for
    widens: tuple[str, ...] = ()  # of more types, with the one before: "RoPE.__call__(offset: int)"
    kernel: str = ""  # a C++ or Metal file with a part of the answer, between its `BEGIN task` and `END task`
    lines: int = 0  # about how long the answer is; 0 = not stated
    hints: tuple[str, ...] = ()
    also: tuple[str, ...] = ()  # what it owns in other files: "engine/scheduler.py:Scheduler.reconfigure"
    bonus: bool = False  # on neither the short nor the whole path: no task of these needs it

    @property
    def day_id(self) -> str:
        return self.id.rpartition(".")[0]

    @property
    def files(self) -> tuple[str, ...]:
        """The Python files that it owns symbols of, its own first."""
        others = (each.partition(":")[0] for each in self.also)
        return tuple(dict.fromkeys(name for name in (self.file, *others) if name))

    def symbols_in(self, file: str) -> tuple[str, ...]:
        """The symbols of a file that it owns."""
        own = self.symbols if file == self.file else ()
        return *own, *(each.removeprefix(f"{file}:") for each in self.also if each.startswith(f"{file}:"))


@dataclass(frozen=True)
class Day:
    """One chapter of the book with its tasks, in order."""

    id: str
    title: str
    chapter: str
    tasks: tuple[Task, ...]
    more: tuple[str, ...] = ()  # further pages of a long chapter
    short: bool = False  # on the short path too

    @property
    def pages(self) -> tuple[str, ...]:
        """Its pages in book/src, in order."""
        return self.chapter, *self.more


@dataclass(frozen=True)
class Given:
    """A file of the reference that belongs to no task, and why."""

    file: str
    reason: str


Item = TypeVar("Item", Task, Day)


@dataclass(frozen=True)
class Course:
    """A repository's manifest and the paths in it."""

    root: Path
    days: tuple[Day, ...]
    given: frozenset[str] = frozenset()  # files of the reference that are no exercise: the starter has them

    @property
    def tasks(self) -> tuple[Task, ...]:
        return tuple(task for day in self.days for task in day.tasks)

    @property
    def reference(self) -> Path:
        return self.root / "src" / "tiny_llm_ref"

    @property
    def starter(self) -> Path:
        return self.root / "src" / "tiny_llm"

    def task(self, task_id: str) -> Task:
        return _with_this_id(self.tasks, task_id, "task")

    def day(self, day_id: str) -> Day:
        return _with_this_id(self.days, day_id, "day")

    def tasks_of(self, name: str) -> tuple[Task, ...]:
        """Those of a day, as in 2.7, or one task, as in 2.7.3."""
        return self.day(name).tasks if name.count(".") == 1 else (self.task(name),)

    def week(self, week: int) -> tuple[Day, ...]:
        result = tuple(day for day in self.days if day.id.startswith(f"{week}."))
        if not result:
            weeks = sorted({day.id.partition(".")[0] for day in self.days}, key=int)
            raise UserError(f"there is no week {week}: the course has {', '.join(weeks)}")
        return result

    def select(self, week: int | None, day: str | None, task: str | None) -> frozenset[Task] | None:
        """The tasks that a command asks for; None when it asks for no week, day or task."""
        if task is not None:
            return frozenset([self.task(task)])
        if day is not None:
            return frozenset(self.day(_day_id(week, day)).tasks)
        if week is not None:
            return frozenset(task for each in self.week(week) for task in each.tasks)
        return None

    def test_files(self, tasks: Iterable[Task]) -> list[str]:
        """The test files that name one of these tasks, from the root on; by days: day 7 before day 10."""
        names = {f'"{task.id}"' for task in tasks}
        result = (self.root / "tests").glob("week_*/test_day_*.py")
        holding = [path for path in result if any(name in path.read_text(encoding="utf-8") for name in names)]
        return [path.relative_to(self.root).as_posix() for path in sorted(holding, key=_by_day)]

    def tasks_before(self, day: str) -> list[Task]:
        """The tasks of all days before `day`. Raises UserError for a day that does not exist."""
        self.day(day)
        return [task for task in self.tasks if self.is_later(day, task.day_id)]

    def is_later(self, day_id: str, than: str) -> bool:
        """Whether one day comes after another."""
        order = [day.id for day in self.days]
        return order.index(day_id) > order.index(than)

    def mistakes(self) -> list[Mistake]:
        """The known mistakes, in the order of their file; none without a file."""
        path = self.root / "tests" / "known_mistakes.toml"
        own_files = {task.id: task.file for task in self.tasks}
        return read_mistakes(path, own_files) if path.exists() else []


def _by_day(path: Path) -> tuple[str, int, str]:
    return path.parent.name, int(path.stem.split("_")[2]), path.stem


def _with_this_id(items: Sequence[Item], id_: str, what: str) -> Item:
    by_id = {item.id: item for item in items}
    if id_ in by_id:
        return by_id[id_]
    span = f"the course has {items[0].id} to {items[-1].id}" if items else "the course has none"
    around = id_.rpartition(".")[0]  # the usual slip is in the last digit
    near = [each for each in by_id if each.rpartition(".")[0] == around] or list(by_id)
    # 9.9.9 is not similar to any id.
    raise UserError(f"there is no {what} {id_!r}: {did_you_mean(id_, near, span, cutoff=0.7)}")


def _day_id(week: int | None, day: str) -> str:
    if "." not in day:
        if week is None:
            raise UserError(f"--day {day} needs a week: write --week 2 --day {day}, or --day 2.{day}")
        return f"{week}.{day}"
    if week is not None and not day.startswith(f"{week}."):
        raise UserError(f"--day {day} is not in --week {week}: leave out one of them")
    return day


def load_course(root: Path | None = None) -> Course:
    """Read course.toml of the repository at `root` (None = this one). Raises UserError when malformed."""
    root = repository() if root is None else root
    data = _read(root / "course.toml", {"day", "task", "given"})
    tasks = [_task(row) for row in data.get("task", [])]
    days = [_day(row, tasks) for row in data.get("day", [])]
    _reject_repeats([day.id for day in days] + [task.id for task in tasks])
    homeless = [task.id for task in tasks if task.day_id not in {day.id for day in days}]
    if homeless:
        raise UserError(f"course.toml: task {homeless[0]} belongs to no day: add [[day]] with its id")
    return Course(
        root, tuple(days), frozenset(built(Given, row, "given").file for row in data.get("given", []))
    )


def _read(path: Path, tables: set[str]) -> dict[str, Any]:
    data = read_toml(path)
    unknown = set(data) - tables
    if unknown:
        raise UserError(f"{path.name}: unknown table {sorted(unknown)[0]!r}: use {', '.join(sorted(tables))}")
    return data


def _day(row: dict[str, Any], tasks: Sequence[Task]) -> Day:
    own = tuple(task for task in tasks if task.day_id == row.get("id"))
    day = built(Day, row | {"tasks": own, "more": tuple(row.get("more", ()))}, "day")
    return _with_id(day, day.id, r"\d+\.\d+", "W.D")


def _task(row: dict[str, Any]) -> Task:
    for key in ("symbols", "grows", "adds", "needed", "calls", "widens", "hints", "also"):
        if not isinstance(row.get(key, []), list) or not all(isinstance(x, str) for x in row.get(key, [])):
            raise UserError(f"course.toml: task {row.get('id')}: {key} must be a list of strings")
    task = built(Task, {k: tuple(v) if isinstance(v, list) else v for k, v in row.items()}, "task")
    if not (task.file or task.kernel):
        raise UserError(f"course.toml: task {task.id} needs a file or a kernel: add one")
    return _with_id(task, task.id, r"\d+\.\d+\.\d+", "W.D.N")


def _with_id(item: Item, id_: str, pattern: str, form: str) -> Item:
    if not re.fullmatch(pattern, id_):
        raise UserError(f"course.toml: id {id_!r} does not have the form {form}: correct it")
    return item


def _reject_repeats(ids: Sequence[str]) -> None:
    repeated = [id_ for id_ in ids if ids.count(id_) > 1]
    if repeated:
        raise UserError(f"course.toml: two entries have the id {repeated[0]}: change one")
