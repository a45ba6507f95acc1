"""`python -m tools COMMAND`, which `pdm run` calls for the commands of this package."""

import sys
from typing import TYPE_CHECKING

from tiny_llm_lab.__main__ import main

if TYPE_CHECKING:
    from tiny_llm_lab.runtime.console.commands import Catalogue


def _commands() -> "Catalogue":
    from tools.commands import COMMANDS

    return COMMANDS


if __name__ == "__main__":
    sys.exit(main(_commands))
