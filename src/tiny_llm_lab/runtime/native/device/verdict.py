"""The result of a self-test on a device, kept in the cache until the device or the tested code changes."""

import contextlib
import hashlib
import importlib.metadata
import json
import platform
import re
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Final

import mlx.core as mx

from tiny_llm_lab.runtime.cache import cache_folder
from tiny_llm_lab.runtime.native.compiling.build import file_lock

_BUILDS: Final = (14, 15, 26)
_REAL_LEAST: Final = (26, 2)  # for the macOS 26 build, whose name can't say it


def metal_wheel() -> str:
    """The platform of the installed mlx-metal, such as macosx_26_0_arm64; empty if it is not installed."""
    try:
        text = importlib.metadata.distribution("mlx-metal").read_text("WHEEL") or ""
    except importlib.metadata.PackageNotFoundError:
        return ""
    result = re.search(r"^Tag: .*-(\S+)$", text, re.MULTILINE)
    return result[1] if result else ""


def macos_version() -> str:
    """The version of macOS, such as 15.6; empty on other systems. A Python built before 26 calls that 16."""
    version = platform.mac_ver()[0]
    return f"26{version[2:]}" if version.partition(".")[0] == "16" else version


def wheel_fault(wheel: str, macos: str) -> tuple[str, str]:
    """What is wrong with this build under this version of macOS, and the cure; empty if nothing is."""
    result = re.match(r"macosx_(\d+)_", wheel)
    here = tuple(map(int, re.findall(r"\d+", macos)[:2]))
    if result is None or not here:
        return "", ""
    built, best = int(result[1]), max((each for each in _BUILDS if each <= here[0]), default=0)
    if built == _REAL_LEAST[0] and here < _REAL_LEAST:
        return "needs macOS 26.2; on older versions its kernels can fail on an M5 (mlx #4525)", "update macOS"
    if built < best:
        only = "only the build for macOS 26 uses an M5's matrix units"
        return f"is not the build for macOS {best}; {only}", "delete .venv, then run ./pdmw install"
    return "", ""


@dataclass(frozen=True)
class Verdict:
    """The result for an operator of MLX or a kernel of a package."""

    subject: str
    is_right: bool
    says: str  # the result and its consequence
    ratios: tuple[float, ...] = ()  # of a right way, where it was timed: its time divided by MLX's
    needs: tuple[float, ...] = ()  # as many: what it takes of memory, where that is known

    def __str__(self) -> str:
        return f"{mx.device_info()['device_name']}: {self.subject}: {self.says}"


def kept(
    subject: str, sources: Sequence[Path], judge: Callable[[], Sequence[Verdict]], follows: str = ""
) -> tuple[Sequence[Verdict], bool]:
    """The verdicts on `subject`, and whether `judge` made them now.

    They hold for one device, OS, version and build of MLX and content of `sources`. A file that cannot be
    read costs a new test, a folder that cannot be written one in every process. One process tests at a time.
    A test that ended its process, as an error on a GPU can, is not repeated: its subject is wrong, and
    `follows` says what that means for a model.
    """
    path = _path(subject, sources)
    ended = f"crashed its test's process{follows and ': '}{follows}; to test it again, remove {path}"
    crashed = [Verdict(subject, False, ended)]
    with contextlib.ExitStack() as stack:
        # While another process tests, it is written that its test has crashed.
        if (result := _read(path)) is None or result == crashed:
            with contextlib.suppress(OSError):
                path.parent.mkdir(parents=True, exist_ok=True)
                stack.enter_context(file_lock(path.with_suffix(".lock"), f"waiting for {subject} ..."))
            result = _read(path)  # another process may have written it
        if result is not None:
            return result, False
        _write(path, crashed)
        try:
            made = judge()
        except BaseException:
            with contextlib.suppress(OSError):
                path.unlink()
            raise
        _write(path, made)
        return made, True


def _path(subject: str, sources: Sequence[Path]) -> Path:
    system = platform.system(), macos_version() or platform.release()
    build = importlib.metadata.version("mlx"), metal_wheel()
    key = repr((subject, mx.device_info()["device_name"], system, build)).encode()
    digest = hashlib.sha256(b"".join([key, *(source.read_bytes() for source in sources)]))
    return cache_folder() / "verdicts" / f"{digest.hexdigest()[:24]}.json"


def _read(path: Path) -> Sequence[Verdict] | None:
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))
        return [Verdict(*row[:3], *(tuple(map(float, numbers)) for numbers in row[3:])) for row in rows]
    except (OSError, ValueError, TypeError):
        return None


def _write(path: Path, verdicts: Sequence[Verdict]) -> None:
    scratch = path.with_suffix(".new")
    with contextlib.suppress(OSError):
        scratch.write_text(json.dumps([astuple(each) for each in verdicts]), encoding="utf-8")
        scratch.replace(path)  # all of it or nothing
