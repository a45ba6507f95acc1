"""The names of all tasks of a solution, wherever in its folders they are defined."""

import importlib
import re
from pathlib import Path
from types import ModuleType

_DEFINITION = re.compile(r"^(?:class|def) (\w+)|^(\w+)(?=:| =)", flags=re.MULTILINE)


class TaskNames:
    """A package whose modules' public names are its own attributes: `llm.BlockPool` for its tests.

    A solution exports only what its users need; a task's name is found in the module that defines it.
    Names are looked up at every use, so that a test sees what another has replaced.
    """

    def __init__(self, package: ModuleType) -> None:
        """Read, and do not import, the modules of `package`: an error in one must not hide the rest."""
        self.package = package
        folder = Path(str(package.__file__)).parent
        self._modules: dict[str, str] = {}
        for name, path in modules(folder).items():
            if path.name != "__init__.py":
                module = f"{package.__name__}.{name.removesuffix('.py').replace('/', '.')}"
                for match in _DEFINITION.finditer(path.read_text(encoding="utf-8")):
                    self._modules.setdefault(match[1] or match[2], module)

    @property
    def __name__(self) -> str:
        return self.package.__name__

    def __getattr__(self, name: str) -> object:
        if is_private(name) or name not in self._modules:
            return getattr(self.package, name)
        return getattr(importlib.import_module(self._modules[name]), name)


def is_private(name: str) -> bool:
    """Whether a name belongs to the answer rather than the contract: _name, and not __name__."""
    return name.startswith("_") and not (name.startswith("__") and name.endswith("__"))


def modules(package: Path) -> dict[str, Path]:
    """Every Python file of a package by its path in it, such as "layers/basics.py", in order."""
    return {path.relative_to(package).as_posix(): path for path in sorted(package.rglob("*.py"))}
