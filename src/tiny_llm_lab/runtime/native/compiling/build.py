"""Compiles C++ on first use and keeps the result, by content, in the cache folder."""

import errno
import functools
import hashlib
import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import mlx.core as mx
import nanobind

from tiny_llm_lab.runtime.cache import cache_folder
from tiny_llm_lab.runtime.native.compiling.compiler_errors import errors_in
from tiny_llm_lab.runtime.native.compiling.isa import Isa
from tiny_llm_lab.runtime.native.compiling.kept_file import is_whole, keep, remove_old
from tiny_llm_lab.runtime.native.compiling.locks import file_lock
from tiny_llm_lab.runtime.native.compiling.progress import Progress
from tiny_llm_lab.types import UserError

_MLX = Path(mx.__file__).parent
CPP = Path(__file__).parents[1] / "cpp"
_COMMON = ("-std=c++20", "-fPIC", "-Wall", "-Wextra", "-pthread")
# We fuse a product and a sum only where the source says so, so that every copy of a loop rounds alike.
_KERNELS = ("-O3", "-ffp-contract=off", "-fvisibility=hidden", "-Wno-unused")
# Without this GCC computes all products of an unrolled loop before adding them, and runs out of registers.
_GCC_KERNELS = ("-fno-tree-ter",)
_BINDING = "-O2 -fvisibility=hidden -DNB_DOMAIN=mlx -DNB_COMPACT_ASSERTIONS -fno-strict-aliasing".split()


class BuildError(UserError):
    """We can't compile here, or can't keep the result."""

    def in_one_line(self) -> str:
        """What happened and the cure, for a program that continues without the library."""
        return str(self)


class NoCompilerError(BuildError):
    """There is no C++ compiler."""


class CacheError(BuildError):
    """The cache folder cannot be written, its disk is full, or a file in it is damaged."""


def damaged(path: Path, error: Exception) -> CacheError:
    """The error for a compiled library that cannot be loaded, with the loader's own words."""
    said = " ".join(str(error).split())
    return CacheError(f"cannot load {path} ({said}): delete {path.parent}, and we compile it again")


class CompileError(BuildError):
    """The compiler rejects the source; the message is its own first errors, with file and line."""

    def in_one_line(self) -> str:
        said = str(self).splitlines()
        first = next((line for line in said[1:] if "error" in line), said[-1])
        return f"the C++ compiler failed ({first.strip()}): install a newer g++ or clang, or name one in CXX"


@dataclass(frozen=True)
class Library:
    """A shared library or a program to compile: sources, each with its flags."""

    name: str
    sources: tuple[tuple[Path, tuple[str, ...]], ...]
    link: tuple[str, ...] = ()
    what: str = ""  # for the progress line
    is_program: bool = False


def compiler() -> str:
    """The C++ compiler: CXX, or the first of c++, g++ and clang++ that exists and prints its version.

    macOS without Xcode's tools has programs of these names that only ask for them.
    """
    names = [own] if (own := os.environ.get("CXX")) else ["c++", "g++", "clang++"]
    found = next(
        (path for name in names if (path := shutil.which(name)) and compiler_version(path).strip()), None
    )
    if found is None:
        cure = "run xcode-select --install" if sys.platform == "darwin" else "install g++ or clang"
        raise NoCompilerError(f"cannot find a C++ compiler: {cure}, or name one in CXX")
    return found


def kernels_folder(package: str) -> Path | None:
    """The folder of a package's C++ and Metal; None if there is no such package."""
    spec = importlib.util.find_spec(package)
    return None if spec is None or spec.origin is None else Path(spec.origin).parent / "kernels"


def kernel_library(folder: Path, isa: Isa, extra: Sequence[str] = ()) -> Library:
    """The kernels of a package's `folder` for one instruction set."""
    own = _GCC_KERNELS if "Free Software Foundation" in compiler_version(compiler()) else ()
    macros = (f"-DTINY_ISA={isa.name}", f"-DTINY_WIDTH={isa.width}")
    headers = (f"-I{CPP / 'include'}", f"-I{folder}")  # given headers include those of a task
    flags = (*_KERNELS, *own, *isa.flags, *macros, *headers, *extra)
    sources = [*sorted(folder.glob("*.cpp")), CPP / "draw.cpp", CPP / "table.cpp"]
    return Library(
        f"kernels-{isa.name}.so", tuple((path, flags) for path in sources), what=f"kernels for {isa.name}"
    )


def binding_library(mlx: Path = _MLX, is_for_mac: bool = sys.platform == "darwin") -> Library:
    """The module that makes kernels known to the MLX in `mlx` and to Python, wherever they come from."""
    bind = Path(nanobind.include_dir())
    paths = (CPP / "include", mlx / "include", bind, bind.parent / "ext/robin_map/include")
    flags = (*_BINDING, *(f"-I{path}" for path in (*paths, sysconfig.get_path("include"))))
    own = [CPP / name for name in ("binding.cpp", "operator.cpp", "thread_pool.cpp")]
    sources = [*own, bind.parent / "src/nb_combined.cpp"]
    # Python's symbols are there when it is loaded. So is libmlx, but dyld need not know it by this name.
    of_mac = ("-undefined", "dynamic_lookup", f"-Wl,-rpath,{mlx / 'lib'}") if is_for_mac else ()
    link = (f"-L{mlx / 'lib'}", "-lmlx", *of_mac)
    return Library("_binding.so", tuple((path, flags) for path in sources), link, "the bridge to MLX")


def build_all(libraries: Sequence[Library]) -> None:
    """Compile, at the same time, those that are not in the cache. Raises as `build`."""
    missing = [library for library in libraries if not is_whole(_target(library, compiler()))]
    if not missing:
        return
    what = missing[0].what if len(missing) == 1 else f"{len(missing)} libraries of kernels"
    num_files = sum(len(library.sources) for library in missing)
    with Progress(what, num_files) as bar, ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(lambda library: build(library, bar), missing))


def build(library: Library, progress: Progress | None = None) -> Path:
    """The compiled library, from the cache if its sources, headers, flags and versions are the same.

    `progress` is one that others share; without it the library has a line of its own.
    Raises NoCompilerError, CacheError or CompileError, one line each but for the compiler's own words.
    """
    cxx = compiler()
    target = _target(library, cxx)
    folder = target.parent
    if is_whole(target):
        return target
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock = folder.with_suffix(".lock")
        with file_lock(lock, f"waiting while another process compiles {library.what} ..."):
            if not is_whole(target):
                _build_into(target, library, cxx, progress)
    except OSError as error:
        raise CacheError(f"{folder}: cannot write it ({error.strerror}): {_cure(error.errno)}") from None
    return target


def _target(library: Library, cxx: str) -> Path:
    return cache_folder() / "native" / _fingerprint(library, cxx) / library.name


def _build_into(target: Path, library: Library, cxx: str, progress: Progress | None) -> None:
    native = target.parent.parent
    remove_old(native, f"{tempfile.gettempprefix()}*")
    own = Progress(library.what, len(library.sources)) if progress is None else nullcontext(progress)
    with tempfile.TemporaryDirectory(dir=native) as scratch, own as bar:
        made = _compile(library, cxx, Path(scratch), bar)
        target.parent.mkdir(exist_ok=True)
        keep(made, target)


def _compile(library: Library, cxx: str, scratch: Path, progress: Progress) -> Path:
    def compiled(number: int) -> str:
        made = _object(library, cxx, scratch, number)
        progress.advance()
        return str(made)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = list(pool.map(compiled, range(len(library.sources))))
    made = scratch / library.name
    kind = () if library.is_program else ("-shared",)
    _run([cxx, *kind, "-pthread", *objects, *library.link, "-o", str(made)])
    return made


def _object(library: Library, cxx: str, scratch: Path, number: int) -> Path:
    """One source, compiled and kept by content, so that after a change to one file we have the others."""
    source, flags = library.sources[number]
    alone = replace(library, sources=(library.sources[number],), link=())
    kept = cache_folder() / "native" / "objects" / f"{_fingerprint(alone, cxx)}.o"
    if not is_whole(kept):
        kept.parent.mkdir(parents=True, exist_ok=True)
        made = scratch / f"{number}.o"
        _run([cxx, *_COMMON, *flags, "-c", str(source), "-o", str(made)], source.parent)
        keep(made, kept)
    return kept


def _run(command: list[str], folder: Path | None = None) -> None:
    """Run the compiler on a source of `folder`, in English, because we read its messages."""
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"})
    if done.returncode != 0:
        if os.strerror(errno.ENOSPC) in done.stderr:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        said = done.stderr.strip() if folder is None else errors_in(done.stderr, folder)
        raise CompileError(f"the C++ compiler failed\n{said}")


def _cure(number: int | None) -> str:
    return "free some space, or set TINY_LLM_CACHE" if number == errno.ENOSPC else "set TINY_LLM_CACHE"


@functools.cache
def compiler_version(cxx: str) -> str:
    """What the compiler prints about itself, in several lines; nothing if it is not a compiler."""
    return subprocess.run([cxx, "--version"], capture_output=True, text=True).stdout


def _fingerprint(library: Library, cxx: str) -> str:
    digest = hashlib.sha256(compiler_version(cxx).encode())
    for package in ("mlx", "nanobind"):
        digest.update(importlib.metadata.version(package).encode())
    digest.update(
        repr((sysconfig.get_config_var("SOABI"), _COMMON, library.link, library.is_program)).encode()
    )
    own = {path for path, _ in library.sources if "nanobind" not in path.parts}
    headers = {header for path in own for header in path.parent.glob("*.h")} | set(
        (CPP / "include").glob("*.h")
    )
    for path, flags in library.sources:
        digest.update(repr((path.name, [flag for flag in flags if not flag.startswith("-I")])).encode())
    for path in sorted(own | headers):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:24]
