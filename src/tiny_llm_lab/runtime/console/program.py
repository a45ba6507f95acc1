"""How the commands are called on this machine."""

import sys
from pathlib import Path
from typing import Final

from tiny_llm_lab.runtime.checkout import has_checkout

INSTALLED: Final = "tiny-llm"


def program() -> str:
    """What you type before a command: `tiny-llm` if that was typed or there is no checkout."""
    is_installed = Path(sys.argv[0]).name == INSTALLED or not has_checkout()
    return INSTALLED if is_installed else "./pdmw run"
