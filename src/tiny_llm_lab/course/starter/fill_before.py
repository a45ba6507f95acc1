"""`stubs --fill-before W.D`: the stubs of earlier days get their answers: a person can begin at W.D."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tiny_llm_lab.course.cutting import KERNEL_SUFFIXES, cut_bodies, fill_kernel
from tiny_llm_lab.course.growth import growths
from tiny_llm_lab.course.manifest import Course, Task
from tiny_llm_lab.course.record.record import load_record
from tiny_llm_lab.course.source import Source, exercises
from tiny_llm_lab.course.starter.added_parameters import calls_in, with_parameters
from tiny_llm_lab.course.starter.backup import keep_backup
from tiny_llm_lab.course.starter.filling import Filled, fill_stubs
from tiny_llm_lab.types import UserError


@dataclass(frozen=True)
class Filling:
    """What filling makes of a package: the new texts of the files that change, by path in the package.

    `filled`, `kept` and `clashing` are as in `Filled`, over all files; they name functions. `added` are
    lines about parameters that given answers pass to those of `kept`.
    """

    texts: Mapping[str, str]
    filled: Collection[str]
    kept: Collection[str]
    clashing: Mapping[str, str]
    added: Sequence[str]


def filling(course: Course, day: str, starter: Mapping[str, str]) -> Filling:
    """What giving all tasks before `day` their answers changes. `starter` has the text of missing files.

    Raises UserError for a day that does not exist and for a file that is not Python.
    """
    course.day(day)
    early = {task.id for task in course.tasks if course.is_later(day, task.day_id)}
    parts: dict[str, Filled] = {}
    texts: dict[str, str] = {}
    added: list[str] = []
    sources = exercises(course)
    for name, source in sources.items():
        ids = source.task_ids()
        wanted = [function for function, id_ in ids.items() if id_ in early]
        if wanted:
            later = {function: id_ for function, id_ in ids.items() if id_ not in early}
            mine = _text(course.starter / name, starter[name])
            parts[name] = _filled(name, mine, cut_bodies(source.text, later), wanted)
    calls = calls_in(part.text for part in parts.values())
    grown = [each for each in growths(course) if each.task not in early]
    for name, part in parts.items():
        of_own = [each for each in grown if each.symbol in part.kept]
        texts[name], new = with_parameters(part.text, sources[name].text, of_own, calls)
        added += new
    texts |= _kernels(course, starter, early)
    return Filling(
        {name: text for name, text in texts.items() if text != _text(course.starter / name, "")},
        [each for part in parts.values() for each in part.filled],
        [each for part in parts.values() for each in part.kept],
        {each: helper for part in parts.values() for each, helper in part.clashing.items()},
        added,
    )


def write(course: Course, found: Filling, edited: Collection[str]) -> Iterator[str]:
    """Write the files, those in `edited` after a backup; yields a line for each backup."""
    for name, text in found.texts.items():
        path = course.starter / name
        if name in edited and path.exists():
            yield f"{name} was edited: kept as {keep_backup(path).name}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def report(course: Course, day: str, found: Filling) -> Iterator[str]:
    """What was done, and what follows for the tasks from `day` on."""
    yield (
        f"{len(found.texts)} files of src/tiny_llm changed: {len(found.filled)} functions of the days before "
        f"{day} have their answers"
    )
    for name, helper in found.clashing.items():
        yield f"{name} is still to do: its answer brings another {helper} than yours"
    later = [task for task in course.tasks if task.day_id == day or course.is_later(task.day_id, day)]
    extended = [task for task in later if _grown(task, found.filled)]
    if extended:
        done = [task.id for task in extended if not task.symbols]
        rest = f": nothing is left to write in {', '.join(done)}" if done else ""
        listed = ", ".join(task.id for task in extended)
        yield f"they are in their final form, with what later tasks add ({listed}){rest}"
    outcomes = load_record(course.root)[0].outcomes
    for task in course.tasks:
        has_passed = task.id in outcomes and outcomes[task.id].passed_at
        if task not in later and not has_passed and (own := _grown(task, found.kept)):
            yield f"task {task.id} extends {', '.join(own)}: yours, left alone; extending it is still to do"
    yield from found.added


def is_given(course: Course, name: str, text: str) -> bool:
    """Whether the `text` of a file of the package has nothing but stubs and answers of the reference."""
    answer = (course.reference / name).read_text(encoding="utf-8")
    if name.endswith(KERNEL_SUFFIXES):
        return fill_kernel(text, answer, lambda task: True) == answer
    return fill_stubs(text, answer, list(Source(answer).functions)).text == answer


def _grown(task: Task, names: Collection[str]) -> list[str]:
    """What a task extends, if any of it is among these functions."""
    return [
        symbol
        for symbol in task.grows
        if any(name == symbol or name.startswith(f"{symbol}.") for name in names)
    ]


def _filled(name: str, mine: str, answer: str, wanted: Collection[str]) -> Filled:
    try:
        return fill_stubs(mine, answer, wanted)
    except SyntaxError as error:
        raise UserError(f"src/tiny_llm/{name}:{error.lineno} is not Python ({error.msg}): mend it") from None


def _kernels(course: Course, starter: Mapping[str, str], early: set[str]) -> dict[str, str]:
    folder = course.reference / "kernels"
    return {
        f"kernels/{path.name}": fill_kernel(
            _text(course.starter / "kernels" / path.name, starter[f"kernels/{path.name}"]),
            path.read_text(encoding="utf-8"),
            early.__contains__,
        )
        for path in sorted(folder.glob("*"))
        if path.suffix in KERNEL_SUFFIXES
    }


def _text(path: Path, otherwise: str) -> str:
    return path.read_text(encoding="utf-8") if path.exists() else otherwise
