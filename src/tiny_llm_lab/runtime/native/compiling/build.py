"""Compiles C++ on first use and keeps the result, by content, in the cache folder."""

import contextlib
import errno
import functools
import hashlib
import importlib.metadata
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Self

import mlx.core as mx
import nanobind
from filelock import FileLock, Timeout

from tiny_llm_lab.runtime.cache import cache_folder
from tiny_llm_lab.runtime.native.compiling.isa import Isa
from tiny_llm_lab.types import UserError


@contextlib.contextmanager
def file_lock(path: Path, waiting: str) -> Iterator[None]:
    """Hold the lock `path`; print `waiting` if there is a wait.

    Raises OSError if the file cannot be made. On a file system that knows no locks it excludes no process.
    """
    path.touch()
    lock = FileLock(path)
    with contextlib.suppress(NotImplementedError, OSError):
        try:
            lock.acquire(blocking=False)
        except Timeout:
            print(waiting, file=sys.stderr, flush=True)
            lock.acquire()
    try:
        yield
    finally:
        lock.release()


class Progress:
    """One line for `total` files, counted up in place on a terminal. Several threads may share it."""

    def __init__(self, what: str, total: int) -> None:
        self._total = total
        self._begin = f"compiling {what} (once{', up to a minute' if total > 1 else ''}) ..."
        self._num_done = 0
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        self._say(self._begin, end="" if self._counts() else "\n")
        return self

    def advance(self) -> None:
        """Count one more compiled file."""
        with self._lock:
            self._num_done += 1
            if self._counts():
                self._say(f"\r{self._begin} {self._num_done} of {self._total}", end="")

    def __exit__(self, *_: object) -> None:
        if self._counts():
            self._say("")

    def _counts(self) -> bool:
        return self._total > 1 and sys.stderr.isatty()

    def _say(self, text: str, end: str = "\n") -> None:
        print(text, end=end, file=sys.stderr, flush=True)


_OLD_S: Final = 86400.0  # no compiler runs for a day


def keep(made: Path, path: Path) -> None:
    """Move `made` to `path`: all of it or nothing, even without locks or when the power fails."""
    with made.open("rb") as file:
        os.fsync(file.fileno())
    _size_of(path).write_text(str(made.stat().st_size), encoding="utf-8")
    made.replace(path)


def is_whole(path: Path) -> bool:
    """Whether `path` has the size that `keep` gave it: reading past the end of a library kills a process."""
    try:
        return path.stat().st_size == int(_size_of(path).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False


def remove_old(folder: Path, pattern: str) -> None:
    """Remove folders that killed processes left in `folder`: those without a new file for a day."""
    for left in folder.glob(pattern):
        with contextlib.suppress(OSError):  # another process may do the same
            if time.time() - left.stat().st_mtime > _OLD_S:
                shutil.rmtree(left)


def _size_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.size")


_PLACE: Final = re.compile(r"^(?P<path>[^\s:]+):(?P<line>\d+):(?:\d+:)? +(?P<says>.*)$")
_ERROR: Final = re.compile(r"(?:fatal )?error: ")
# A template is compiled for every type it is used with. GCC says where before the error, Clang behind it.
_USED_BELOW: Final = "required from"
_USED_ABOVE: Final = "note: in instantiation"
# Lines of source and marks that are shown below an error.
_CONTEXT: Final = 3
_MOST: Final = 3


@dataclass
class _Error:
    text: list[str]
    is_own: bool
    used_at: str | None = None  # the place in the learner's code that led to an error in given code


def errors_in(said: str, folder: Path, most: int = _MOST) -> str:
    """The first `most` errors with their lines of source, each place once; all that was said without any.

    An error in a file that is not below `folder` is followed by the place in `folder` that led to it.
    """
    errors = _errors(said.splitlines(), folder)
    if not errors:
        return said.strip()
    more = len(errors) - most
    rest = [f"and {more} more error{'s' * (more > 1)}"] if more > 0 else []
    return "\n".join([*(line for each in errors[:most] for line in _shown(each)), *rest])


def _shown(error: _Error) -> Iterator[str]:
    yield from error.text
    if error.used_at is not None and not error.is_own:
        yield f"  used at {error.used_at}"


def _errors(lines: Sequence[str], folder: Path) -> list[_Error]:
    results: dict[tuple[str, str], _Error] = {}
    used_at, last = None, None
    for number, line in enumerate(lines):
        match = _PLACE.match(line)
        if match is None:
            continue
        is_own = Path(match["path"]).is_relative_to(folder)
        if is_own and match["says"].startswith(_USED_BELOW):
            used_at = used_at or f"{match['path']}:{match['line']}"
        elif is_own and match["says"].startswith(_USED_ABOVE) and last is not None:
            last.used_at = last.used_at or f"{match['path']}:{match['line']}"
        elif _ERROR.match(match["says"]):
            last = _Error([line, *_context(lines[number + 1 :])], is_own, used_at)
            last = results.setdefault((match["path"], match["line"]), last)
            used_at = None
    return list(results.values())


def _context(lines: Sequence[str]) -> Iterator[str]:
    for line in lines[:_CONTEXT]:
        if not line.startswith(" "):
            return
        yield line


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
    message = " ".join(str(error).split())
    return CacheError(f"cannot load {path} ({message}): delete {path.parent}, and we compile it again")


class CompileError(BuildError):
    """The compiler rejects the source; the message is its own first errors, with file and line."""

    def in_one_line(self) -> str:
        message = str(self).splitlines()
        first = next((line for line in message[1:] if "error" in line), message[-1])
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
    result = next(
        (path for name in names if (path := shutil.which(name)) and compiler_version(path).strip()), None
    )
    if result is None:
        cure = "run xcode-select --install" if sys.platform == "darwin" else "install g++ or clang"
        raise NoCompilerError(f"cannot find a C++ compiler: {cure}, or name one in CXX")
    return result


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
    given = [CPP / name for name in ("draw.cpp", "experts.cpp", "table.cpp")]
    sources = [*sorted(folder.glob("*.cpp")), *given]
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


def build(library: Library) -> Path:
    """The compiled library, from the cache if its sources, headers, flags and versions are the same.

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
                _build_into(target, library, cxx)
    except OSError as error:
        raise CacheError(f"{folder}: cannot write it ({error.strerror}): {_cure(error.errno)}") from None
    return target


def _target(library: Library, cxx: str) -> Path:
    return cache_folder() / "native" / _fingerprint(library, cxx) / library.name


def _build_into(target: Path, library: Library, cxx: str) -> None:
    native = target.parent.parent
    remove_old(native, f"{tempfile.gettempprefix()}*")
    progress = Progress(library.what, len(library.sources))
    with tempfile.TemporaryDirectory(dir=native) as scratch, progress as bar, _alarm_stopped():
        made = _compile(library, cxx, Path(scratch), bar)
        target.parent.mkdir(exist_ok=True)
        keep(made, target)


@contextlib.contextmanager
def _alarm_stopped() -> Iterator[None]:
    """Stop the clock of the test that needs the library: what it limits is a learner's code."""
    clock = signal.setitimer(signal.ITIMER_REAL, 0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, *clock)


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
        message = done.stderr.strip() if folder is None else errors_in(done.stderr, folder)
        raise CompileError(f"the C++ compiler failed\n{message}")


def _cure(number: int | None) -> str:
    return "free some space, or set TINY_LLM_CACHE" if number == errno.ENOSPC else "set TINY_LLM_CACHE"


@functools.cache
def compiler_version(cxx: str) -> str:
    """What the compiler prints about itself, in several lines; nothing if it is not a compiler."""
    with tempfile.TemporaryDirectory() as folder:  # zig c++ leaves an empty a.o where it is asked
        command = [str(Path(cxx).absolute()), "--version"]
        return subprocess.run(command, cwd=folder, capture_output=True, text=True).stdout


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
