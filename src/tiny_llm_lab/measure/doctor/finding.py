"""One line of `doctor`, and how a failing check becomes one."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tiny_llm_lab.runtime.native.compiling.build import BuildError
from tiny_llm_lab.types import UserError


@dataclass(frozen=True)
class Finding:
    """What we checked, whether it is right, and what to do if it is not."""

    name: str
    is_right: bool
    says: str
    cure: str = ""


Examination = Callable[[], Iterator[Finding]]


def findings_of(name: str, examine: Examination) -> list[Finding]:
    """The findings of one check; an exception becomes one more finding, so that the other checks run."""
    results: list[Finding] = []
    try:
        results += examine()
    except UserError as error:
        line = error.in_one_line() if isinstance(error, BuildError) else " ".join(str(error).split())
        says, _, cure = without_home(line).rpartition(": ")
        results.append(Finding(name, False, says or cure, cure if says else ""))
    except Exception as error:  # a bug in the program, or in what it checks
        says = without_home(" ".join(f"{type(error).__name__}: {error}".split()))
        results.append(Finding(name, False, says, "open an issue with this page"))
    return results


def without_home(text: str) -> str:
    """Paths without the user's name, because people attach these lines to issues."""
    return text.replace(str(Path.home()), "~")
