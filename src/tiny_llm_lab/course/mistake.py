"""Known mistakes: wrong versions of source files, each with a description."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tiny_llm_lab.course.code_tree import Edit
from tiny_llm_lab.course.toml_rows import built, read_toml
from tiny_llm_lab.runtime.checkout import text_of
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
