"""How the commands are called on this machine."""

import sys
from pathlib import Path
from typing import Final

from tiny_llm_lab.course.manifest import repository
from tiny_llm_lab.types import UserError

INSTALLED: Final = "tiny-llm"


def program() -> str:
    """What precedes the name of a command: `tiny-llm` where it was typed, or where there is no checkout."""
    is_installed = Path(sys.argv[0]).name == INSTALLED or not has_checkout()
    return INSTALLED if is_installed else "./pdmw run"


def has_checkout() -> bool:
    """Whether the package lies in a clone of the project, with its course, tests and book."""
    try:
        repository()
    except UserError:
        return False
    return True
