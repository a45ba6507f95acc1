"""`explain`: which known mistake of a task fails the same tests?"""

import argparse
import re
import sys
from collections.abc import Iterator, Mapping, Sequence

from tiny_llm_lab.course.grading.sandbox import BROKEN, Result, Trial, comparable, rounded, run_trials
from tiny_llm_lab.course.grading.screening import TEST_S, Fit, Variant, screened
from tiny_llm_lab.course.learner.variants import variants
from tiny_llm_lab.course.manifest import Course, Task
from tiny_llm_lab.course.record.standing import open_desk
from tiny_llm_lab.runtime.console.talk import log, plural, program, say
from tiny_llm_lab.runtime.task_names import modules
from tiny_llm_lab.types.packages import PACKAGES

HELP = "Say which known mistake of a task fails the same tests as your code."
EXAMPLES = (
    ("", "explain the task that `next` names"),
    ("1.1.2", "explain task 1.1.2"),
    ("1.3", "explain all tasks of day 1.3"),
)
_MAX_PARTIAL = 4  # the mistakes that are shown when none reproduces all failures
_MAX_LINES = 3  # of a test's own message
_MAX_CHANGES = 3  # the small changes that are told when several fit
_LIMIT_S = 30.0  # of processor time, for known mistakes, twice as much for kinds, and as much for guesses
_OWN_S = 240.0  # for what a learner has written: each test in Python has a limit of its own


def add_arguments(parser: argparse.ArgumentParser) -> None:
    about = "a task or a day, such as 1.1.2 or 1.1 (default: the next task)"
    parser.add_argument("task", nargs="?", metavar="TASK", help=about)
    limit = f"most seconds of processor time for trying a task's known mistakes (default: {_LIMIT_S:.0f})"
    parser.add_argument("--limit", type=float, default=_LIMIT_S, metavar="S", help=limit)


def run(args: argparse.Namespace) -> int:
    desk = open_desk()
    asked = desk.course.tasks_of(args.task) if args.task else [desk.task_or_next(None, "explain 2.2.3")]
    for task in asked:
        print(f"{task.id} {task.title}")
        for line in explanation(desk.course, task, args.limit):
            _progress("")
            say(f"  {line}", "    ")
    return 0


def explanation(course: Course, task: Task, limit_s: float = _LIMIT_S) -> Iterator[str]:
    """The results of a task's tests on src/tiny_llm, and the known mistakes that fail the same way.

    Begins with what the first failed test says. Tries no more mistakes after `limit_s` seconds of
    processor time. Nothing is recorded. Raises UserError when a known mistake no longer fits the reference.
    """
    _progress(f"task {task.id}: its tests run ...")
    args = ("--solution", "mine", *course.test_files([task]), "--task", task.id)
    trial = Trial(course.root, course.starter, PACKAGES["mine"], {}, args)
    (result,) = run_trials([trial], _OWN_S)
    if isinstance(result, TimeoutError):
        yield f"its tests take more than {_OWN_S:.0f} s of processor time: check for a loop that never ends"
        return
    failed = {each.test: rounded(each.message) for each in result.having("failed")}
    if not failed:
        yield _without_failures(result)
        return
    first = comparable(result.having("failed")[0].message).splitlines()[:_MAX_LINES]
    yield "\n  ".join([f"{plural(len(failed), 'test')} failed. The first says: {first[0]}", *first[1:]])
    if all(map(BROKEN.search, failed.values())):
        yield "no known mistake fails like this: your code does not run to its end, and `test` shows where"
        return
    ran = [each for each in result.tests if each.outcome in ("failed", "passed")]
    quick_first = sorted(ran, key=lambda each: (each.outcome != "failed", each.took_s))
    # A slow one would meet its limit with whatever is tried.
    quick = [quick_first[0], *(each for each in quick_first[1:] if each.took_s < TEST_S / 2)]
    wanted = {each.test: failed.get(each.test, "") for each in quick}
    mistakes = _known(course, task)
    _progress(f"{plural(len(mistakes), 'known mistake')} are tried ...")
    fits = screened(course, mistakes, wanted, limit_s, counts=False)
    whole = [fit.says for fit in fits if fit.how_many == "all"]
    whole = whole or _small_changes(course, task, wanted, limit_s)
    if not whole:
        _progress("known mistakes are tried on each test ...")
        fits = screened(course, mistakes, wanted, limit_s, counts=True)
    yield from _verdict(len(failed), fits, whole)
    if len(fits) < len(mistakes):
        tried = f"tried {len(fits)} of {plural(len(mistakes), 'known mistake')}"
        yield f"{tried} in {limit_s:.0f} s of processor time: a larger --limit tries the others"
    if not whole:
        yield f"next: {program()} compare {task.id}, or {program()} hint {task.id}"


def _without_failures(result: Result) -> str:
    if result.error is not None:
        return f"cannot run its tests: {result.error}"
    if todo := result.having("todo"):
        return f"{plural(len(todo), 'test')} reached code that is still to write: {program()} next says where"
    if passed := result.having("passed"):
        return f"{plural(len(passed), 'test')} passed: there is nothing to explain"
    return "none of its tests can run on this machine"


def _known(course: Course, task: Task) -> list[Variant]:
    """The known mistakes of a task."""
    return [
        Variant(each.says, each.file, each.symbol if each.file.endswith(".py") else "", text)
        for each in course.mistakes()
        if each.task == task.id
        for text in [each.apply(course.reference / each.file)]
    ]


def _small_changes(course: Course, task: Task, wanted: Mapping[str, str], limit_s: float) -> list[str]:
    """What small changes of the reference do that fail in the same way; of many, only where they are."""
    own = "".join(path.read_text(encoding="utf-8") for path in modules(course.starter).values())
    is_known, says = frozenset(re.findall(r"\w+", own)).__contains__, list[str]()
    for tier, most_s in (("kind", 2 * limit_s), ("guess", limit_s)):
        if not says:
            _progress("small changes of the answer are tried ...")
            tried = list(variants(course, task, tier, is_known))
            fits = screened(course, tried, wanted, most_s, counts=False)
            says = list(dict.fromkeys(fit.says for fit in fits if fit.how_many == "all"))
    if len(says) <= _MAX_CHANGES:
        return says
    places = " or ".join(dict.fromkeys(each.rpartition(", ")[2] for each in says))
    return [*says[:_MAX_CHANGES], f"one of {len(says) - _MAX_CHANGES} other small things differs {places}"]


def _progress(text: str) -> None:
    """On a terminal, instead of the line before."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}\r", end="", file=sys.stderr, flush=True)
    elif text:
        log(text)


def _verdict(num_failed: int, found: Sequence[Fit], whole: Sequence[str]) -> Iterator[str]:
    if len(whole) == 1:
        yield f"they fail in the same way when {whole[0]}"
    elif whole:
        yield "they fail in the same way with each of these mistakes, and cannot tell them apart:"
        yield from (f"- {says}" for says in whole)
    elif partial := list(_partial(num_failed, found)):
        yield from partial[:_MAX_PARTIAL]
    else:
        yield f"none fails as with any of the {plural(len(found), 'known mistake')} that were tried"


def _partial(num_failed: int, found: Sequence[Fit]) -> Iterator[str]:
    """The mistakes that together fail most of these tests, first those that fail no others."""
    left = frozenset(range(num_failed))
    while rest := [fit for fit in found if fit.alike & left]:
        best = max(rest, key=lambda fit: (fit.how_many != "more", len(fit.alike & left)))
        alike = [fit.says for fit in rest if (fit.how_many, fit.alike) == (best.how_many, best.alike)]
        look = "fails" if len(best.alike) == 1 else "fail"
        more = "; but that also fails tests that pass with your code" if best.how_many == "more" else ""
        says = " or ".join(alike[:_MAX_CHANGES])
        yield f"{len(best.alike)} of {plural(num_failed, 'failed test')} {look} as when {says}{more}"
        left -= best.alike
