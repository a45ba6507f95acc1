"""The commands of this package."""

from typing import Final

from tiny_llm_lab.runtime.console.commands import Catalogue

_MODULES: Final = {
    "bench": "benchmarks.bench",
    "bench-engine": "benchmarks.engine.command",
    "bench-kernels": "benchmarks.kernels.command",
}
COMMANDS: Final = Catalogue(_MODULES, first=tuple(_MODULES))
