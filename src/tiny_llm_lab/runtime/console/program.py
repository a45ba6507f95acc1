"""How the commands are called on this machine."""

import sys
from pathlib import Path
from typing import Final

from tiny_llm_lab.runtime.checkout import has_checkout

INSTALLED: Final = "tiny-llm"


def program() -> str:
    """What precedes the name of a command: `tiny-llm` where it was typed, or where there is no checkout."""
    is_installed = Path(sys.argv[0]).name == INSTALLED or not has_checkout()
    return INSTALLED if is_installed else "./pdmw run"
