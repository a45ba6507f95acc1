"""`python -m tools COMMAND`, which `pdm run` calls for the commands of this package."""

import sys

from tiny_llm_lab.__main__ import main

if __name__ == "__main__":
    sys.exit(main("tools.commands"))
