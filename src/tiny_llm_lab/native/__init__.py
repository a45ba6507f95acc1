"""The C++ kernels of a package: compiled on first use, checked once, and then operators of MLX.

`kernels(__package__)` is all that a solution calls. It is None where the kernels cannot or should not run:
on a GPU, without a C++ compiler (said once, in one line), or with TINY_LLM_KERNELS=off.
"""

import importlib.machinery
import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import mlx.core as mx

from tiny_llm_lab.native.isa import ISAS, available, chosen, physical_cores
from tiny_llm_lab.types import UserError

VARIABLE = "TINY_LLM_KERNELS"
THREADS_VARIABLE = "TINY_LLM_THREADS"

_loaded: dict[str, Any] = {}
_binding: ModuleType | None = None


def kernels(package: str) -> Any:
    """The operators of `package`'s folder kernels/, or None; see the class KernelSet in binding.cpp.

    Raises UserError when its C++ does not compile or computes something wrong.
    """
    if mx.default_device() != mx.cpu:
        return None
    package = package.partition(".")[0]  # a module may pass its own __package__
    try:
        return _loaded[package]
    except KeyError:
        _loaded[package] = _load(package)
        return _loaded[package]


def reads(bits: int, group_size: int) -> bool:
    """Whether the kernels read weights that are packed so; the other widths are rare."""
    return bits in (4, 8) and group_size in (32, 64, 128)


def can_run() -> bool:
    """Whether kernels are wanted here and can be compiled: what decides the dtype of a model on a CPU."""
    from tiny_llm_lab.native.build import NoCompilerError, compiler

    if mx.default_device() != mx.cpu or _is_off():
        return False
    try:
        return bool(compiler())
    except NoCompilerError:
        return False


def switch(package: str, is_on: bool) -> None:
    """Turn the kernels of a package on or off for what follows in this process."""
    _loaded.pop(package, None)
    if not is_on:
        _loaded[package] = None


def binding() -> ModuleType:
    """The compiled bridge to MLX, with the threads and the profile."""
    global _binding
    if _binding is None:
        from tiny_llm_lab.native.build import binding_library, build

        path = str(build(binding_library()))
        loader = importlib.machinery.ExtensionFileLoader("_binding", path)
        spec = importlib.util.spec_from_file_location("_binding", path, loader=loader)
        assert spec is not None
        _binding = importlib.util.module_from_spec(spec)
        loader.exec_module(_binding)
        _binding.set_num_threads(int(os.environ.get(THREADS_VARIABLE) or physical_cores()))
    return _binding


def load(package: str, isa_name: str | None = None) -> Any:
    """The compiled kernels of a package for the chosen instruction set, without any check."""
    return _built(package, isa_name or chosen().name)[1]


def _built(package: str, isa_name: str) -> tuple[Path, Any]:
    from tiny_llm_lab.native.build import build, kernel_library

    wanted = next(isa for isa in ISAS if isa.name == isa_name)
    path = build(kernel_library(_folder(package), wanted))
    return path, binding().KernelSet(str(path))


def _load(package: str) -> Any:
    from tiny_llm_lab.native.build import NoCompilerError

    if _is_off():
        return None
    try:
        return next((k for isa in _from_chosen() if (k := _tested(package, isa)) is not None), None)
    except NoCompilerError as error:
        print(f"{error}; until then everything runs in plain MLX, which is slow on a CPU", file=sys.stderr)
        return None


def _is_off() -> bool:
    return os.environ.get(VARIABLE) == "off"


def _from_chosen() -> list[str]:
    """The chosen instruction set, and what to fall back to."""
    names = [isa.name for isa in available()]
    return names[names.index(chosen().name) :]


def _tested(package: str, isa_name: str) -> Any:
    """The kernels, if they compute the right thing on this machine: asked once, remembered beside them."""
    from tiny_llm_lab.native.self_test import first_wrong

    path, made = _built(package, isa_name)
    verdict = path.with_suffix(".tested")
    if not verdict.exists():
        wrong = first_wrong(made)
        if wrong is not None:
            print(f"{package}: {wrong} of the {isa_name} kernels computes something wrong", file=sys.stderr)
            return None
        verdict.touch()
    return made


def _folder(package: str) -> Path:
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise UserError(f"{package} has no folder of kernels")
    return Path(spec.origin).parent / "kernels"
