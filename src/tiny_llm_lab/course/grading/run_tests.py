"""`test` grades the learner's package, `test-ref` the reference: pytest with the course's plugin."""

import argparse
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from tiny_llm_lab.course.manifest import Course, Task, load_course
from tiny_llm_lab.runtime.cache import cache_folder
from tiny_llm_lab.runtime.console.talk import did_you_mean
from tiny_llm_lab.types import UserError

FLAGS: dict[str, dict[str, Any]] = {
    "--week": {"type": int, "help": "run only the tests of this week"},
    "--day": {"help": "run only the tests of this day: --week 2 --day 7 or --day 2.7"},
    "--task": {"help": "run only the tests of this task, such as --task 2.7.3"},
    "--kernels": {
        "choices": ("off", "cpp", "mlx"),
        "help": "operators of the models, unless a test chooses (default: TINY_LLM_KERNELS, or off)",
    },
    "--full": {"action": "store_true", "help": "also run the tests that take minutes"},
}


HELP = "Grade src/tiny_llm (test) or the reference (test-ref): a week, a day, a task or everything."

# pytest's own options that need all tests in one process, or say how many there are.
_SAYS_PROCESSES = ("-n", "--numprocesses", "--dist", "--pdb", "--trace", "-s", "--capture=no")
_OF_XDIST = ("-n", "--numprocesses", "--dist", "--maxprocesses", "--tx", "--looponfail", "-f", "-p")
_WITHOUT_XDIST = ("-p", "no:xdist", "-p", "no:xdist.looponfail")
_WITHOUT_HYPOTHESIS = ("-p", "no:hypothesispytest")  # its report and its options; the tests work without
_NO_TASKS = ("tests/lab", "tests/kernels", "tools", "benchmarks")  # folders whose tests grade nobody
# The first failure in full, and nothing that a learner doesn't need.
BRIEF = (
    *("--brief", "-q", "-rN", "--no-header", "--tb=short"),
    *("-W", "ignore::pytest.PytestAssertRewriteWarning"),  # the plugin has been imported before
)
_NOT_BRIEF = ("--tb", "-v", "-r", "--collect-only", "--co", "--pdb", "--fixtures", "--markers", "-h")
_SOURCE = Path(__file__).resolve().parents[3]
IN_PARALLEL = ("-n", "auto", "--dist", "worksteal")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    flags = "[--week W] [--day D] [--task T] [--kernels SET] [--full]"
    parser.usage = f"%(prog)s [DAY | TASK] {flags} [pytest arguments]"
    parser.epilog = (
        f"A day or task may be named without its flag: {parser.prog} 2.7.3\n"
        "All other arguments go to pytest, with or without `--` before them:\n"
        f"  {parser.prog} 2.7 -x -k chunk\n"
        "Several days run in parallel; -n0 runs them in one process."
    )
    for flag, settings in FLAGS.items():
        parser.add_argument(flag, **settings)
    parser.set_defaults(handed_on=[])


def run(args: argparse.Namespace) -> NoReturn:
    """Become pytest."""
    course = load_course()
    command = graded_command(course, args)
    os.chdir(course.root)
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(command[0], command, environment() | (bytecode() if args.command == "test-ref" else {}))


def graded_command(course: Course, args: argparse.Namespace) -> list[str]:
    """pytest on what `args` ask for. Raises UserError for a week, day or task that does not exist."""
    own = [arg for i, arg in enumerate(args.handed_on) if arg != "--" or "--" in args.handed_on[:i]]
    if own and re.fullmatch(r"\d+\.\d+(\.\d+)?", own[0]) and args.day is None and args.task is None:
        name = own.pop(0)
        args.day, args.task = (None, name) if name.count(".") == 2 else (name, None)
    wanted = course.select(args.week, args.day, args.task)  # reports what does not exist before pytest starts
    for flag in (arg.partition("=")[0] for arg in own if arg.startswith("--")):
        if meant := did_you_mean(flag, FLAGS, cutoff=0.7):
            raise UserError(f"there is no {flag}: {meant}")
    command = pytest_command("ref" if args.command == "test-ref" else "mine")
    for option in ("week", "day", "task", "kernels"):
        value = getattr(args, option)
        if value is not None:
            command += [f"--{option}", str(value)]
    command += ["--full"] if args.full else []
    processes = parallel(wanted, own)
    files = [] if _names_tests(course, own) else _files(course, args.command, wanted)
    command += processes
    # Importing what a day's tests do not use takes longer than running most of them.
    command += _WITHOUT_XDIST if not processes and not any(arg.startswith(_OF_XDIST) for arg in own) else ()
    command += _WITHOUT_HYPOTHESIS if wanted is not None and files else ()
    if args.command == "test" and not any(arg.startswith(_NOT_BRIEF) for arg in own):
        command += BRIEF
    return command + own + files


def parallel(wanted: frozenset[Task] | None, own: Sequence[str]) -> Sequence[str]:
    """pytest's arguments for several processes, none for one day or task: they take a second to start."""
    num_days = 2 if wanted is None else len({task.day_id for task in wanted})
    is_said = any(arg.startswith(_SAYS_PROCESSES) for arg in own)
    names_file = any(path.suffix == ".py" for path in map(_path, own) if path is not None)
    return () if num_days < 2 or is_said or names_file else IN_PARALLEL


def _files(course: Course, command: str, wanted: frozenset[Task] | None) -> list[str]:
    """What pytest collects: a day's tests are in its own files, and those of the rest belong to no task."""
    if wanted is not None:
        return course.test_files(wanted)
    return [f"--ignore={folder}" for folder in _NO_TASKS] if command == "test" else []


def _names_tests(course: Course, own: Sequence[str]) -> bool:
    return any((course.root / path).exists() for path in map(_path, own) if path is not None)


def _path(arg: str) -> Path | None:
    """Whether this looks like a test file or folder, and not like the word after a -k."""
    path = Path(arg.partition("::")[0])
    return path if path.suffix == ".py" or (len(path.parts) > 1 and not arg.startswith("-")) else None


def pytest_command(solution: str) -> list[str]:
    """pytest on the repository's tests; naming the plugin twice (pyproject.toml does too) is harmless."""
    # A loop in C++ does not return to Python, where the plugin would end it, so the process ends.
    last = ("-o", "faulthandler_timeout=600", "-o", "faulthandler_exit_on_timeout=true")
    plugin = ("-p", "tiny_llm_lab.course.grading.plugin", *(last if solution == "mine" else ()))
    return [sys.executable, "-m", "pytest", *plugin, "--solution", solution]


def bytecode() -> dict[str, str]:
    """The environment in which processes compile a module once, and keep that in the cache folder.

    Empty unless PYTHONDONTWRITEBYTECODE is set. Not for a package that is edited: two edits within a second
    may have the same bytecode.
    """
    if not os.environ.get("PYTHONDONTWRITEBYTECODE"):
        return {}
    return {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(cache_folder() / "bytecode")}


def environment(source: Path = _SOURCE) -> dict[str, str]:
    """A test process's environment: it finds packages in `source`, and always orders sets the same way."""
    # The packages are found whether or not the project is installed, and from any directory.
    paths = [str(source), *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | {"PYTHONPATH": os.pathsep.join(paths), "PYTHONHASHSEED": "0"}
