"""The commands of this package."""

from typing import Final

from benchmarks.commands import COMMANDS as BENCHMARKS
from tiny_llm_lab.cli.commands import COMMANDS as LAB
from tiny_llm_lab.runtime.console.commands import Catalogue

_MODULES: Final = {
    "check": "tools.checking.check",
    "book": "tools.book.command",
}
COMMANDS: Final = Catalogue(_MODULES, first=tuple(_MODULES))
# Of a clone: what each script of pyproject.toml calls.
EVERY: Final = Catalogue({**LAB.modules, **BENCHMARKS.modules, **_MODULES}, first=())
