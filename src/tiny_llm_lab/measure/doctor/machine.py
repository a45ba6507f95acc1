"""The checks of `doctor`, and the line that each of them becomes."""

import importlib.metadata
import os
import platform
import re
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import mlx.core as mx

from tiny_llm_lab.measure.bench.host import cpu_model
from tiny_llm_lab.measure.corpus.question import ANSWER, QUESTION
from tiny_llm_lab.runtime import native
from tiny_llm_lab.runtime.cache import cache_folder
from tiny_llm_lab.runtime.memory import device_memory, readable
from tiny_llm_lab.runtime.models.loading import set_buffer_limits
from tiny_llm_lab.runtime.models.text.tokenizer import CheckpointTokenizer
from tiny_llm_lab.runtime.models.weights.activation_bits import AUTO_BITS
from tiny_llm_lab.runtime.native.compiling import build
from tiny_llm_lab.runtime.native.compiling.isa import available, selected_isa
from tiny_llm_lab.runtime.native.device.verdict import macos_version, metal_wheel, wheel_fault
from tiny_llm_lab.runtime.native.self_test import first_wrong
from tiny_llm_lab.runtime.native.settings import kernels_mode
from tiny_llm_lab.serving.options.chat_template import as_chat
from tiny_llm_lab.serving.options.engine_settings import ModelSettings
from tiny_llm_lab.serving.options.model_options import Loaded, load
from tiny_llm_lab.types import SamplingParams, TokenEvent, UserError
from tiny_llm_lab.types.packages import PACKAGES


@dataclass(frozen=True)
class Finding:
    """What we checked, whether it is right, and what to do if it is not."""

    name: str
    is_right: bool
    says: str
    cure: str = ""


Examination = Callable[[], Iterator[Finding]]


def findings_of(name: str, examine: Examination) -> list[Finding]:
    """The findings of one check; an exception becomes one more finding, so that the other checks run."""
    results: list[Finding] = []
    try:
        results += examine()
    except UserError as error:
        line = error.in_one_line() if isinstance(error, build.BuildError) else " ".join(str(error).split())
        says, _, cure = without_home(line).rpartition(": ")
        results.append(Finding(name, False, says or cure, cure if says else ""))
    except Exception as error:  # a bug in the program, or in what it checks
        says = without_home(" ".join(f"{type(error).__name__}: {error}".split()))
        results.append(Finding(name, False, says, "open an issue with this page"))
    return results


def without_home(text: str) -> str:
    """Paths without the user's name, because people attach these lines to issues."""
    return text.replace(str(Path.home()), "~")


_LEAST_FREE = 2**30
_PINNED = re.compile(r"(mlx|mlx-lm)==([\w.]+)")
_LEAST_MACOS = 14
_INSTALL = "run ./pdmw install"


def system() -> Iterator[Finding]:
    """The operating system, Python and the device that MLX computes on."""
    is_mac = platform.system() == "Darwin"
    name = f"macOS {macos_version()}" if is_mac else f"{platform.system()} {platform.release()}"
    fault, cure = _mac_fault(platform.machine(), macos_version()) if is_mac else ("", "")
    says = f"{name}, {platform.machine()}, Python {platform.python_version()}{fault and '; '}{fault}"
    yield Finding("system", not fault, says, cure)
    if mx.default_device() == mx.cpu:
        says = f"{cpu_model()}, a CPU with {os.cpu_count()} cores"
        cure = "use a Mac with Apple silicon and macOS 14 or newer, not a virtual machine" if is_mac else ""
        yield Finding("device", not is_mac, says, cure)
    else:
        kind = "Metal" if mx.metal.is_available() else "CUDA"
        yield Finding("device", True, f"{mx.device_info().get('device_name')}, a GPU, by {kind}")


def _mac_fault(machine: str, version: str) -> tuple[str, str]:
    """Why MLX can't run on this Mac, and the cure; empty if it can."""
    if machine != "arm64":
        cure = "install a Python for Apple silicon, then delete .venv and .pdmw"
        return "a Python for Intel Macs, which MLX does not support", cure
    if int(version.partition(".")[0] or 0) < _LEAST_MACOS:
        return f"MLX needs macOS {_LEAST_MACOS} or newer", "update macOS"
    return "", ""


def memory() -> Iterator[Finding]:
    """The device's memory, and how much of it is free."""
    here = device_memory()
    says = f"{readable(here.total)}, {readable(here.free)} free"
    if here.usable < here.total:
        says += f"; a GPU may use {readable(here.usable)}"
    if here.largest_array is not None:
        says += f", {readable(here.largest_array)} of it in one array"
    yield Finding("memory", here.free >= _LEAST_FREE, says, "close other programs")


def versions() -> Iterator[Finding]:
    """MLX and mlx-lm, and whether they are the ones that this version is tested with."""
    try:
        wanted = dict(_PINNED.findall(" ".join(importlib.metadata.requires("tiny-llm") or ())))
    except importlib.metadata.PackageNotFoundError:  # run from source
        wanted = {}
    for name in ("mlx", "mlx-lm"):
        try:
            here = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            yield Finding(name, False, "is not installed", _INSTALL)
            continue
        pinned = wanted.get(name, here)
        says = here if here == pinned else f"{here}, but this version is tested with {pinned}"
        yield Finding(name, here == pinned, says, _INSTALL)
    if wheel := metal_wheel():
        fault, cure = wheel_fault(wheel, macos_version())
        yield Finding("mlx-metal", not fault, f"{wheel} {fault}".strip(), cure)


def cpp_compiler() -> Iterator[Finding]:
    """The compiler; a GPU computes without one."""
    try:
        cxx = build.compiler()
    except build.NoCompilerError as error:
        is_right, cure = mx.default_device() == mx.gpu, str(error).partition(": ")[2]
        says = "missing, and a CPU and the course's C++ need one"
        # We show a cure only below a fault.
        yield Finding("compiler", is_right, f"{says}: {cure}" if is_right else says, cure)
        return
    yield Finding("compiler", True, build.compiler_version(cxx).strip().partition("\n")[0])


def instruction_set() -> Iterator[Finding]:
    """The instruction set of the C++ kernels."""
    names = ", ".join(isa.name for isa in available())
    yield Finding("instructions", True, f"{selected_isa().name}; this CPU runs {names}")


def caches() -> Iterator[Finding]:
    """Our cache folder, which must be writable, and the folder of downloaded models."""
    folder = cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        cure = "set TINY_LLM_CACHE to a folder that you can write to"
        yield Finding("cache", False, f"{without_home(str(folder))}: {error.strerror}", cure)
    else:
        parts = (f"{part.name} {readable(_size(part))}" for part in sorted(folder.iterdir()) if part.is_dir())
        yield Finding("cache", True, f"{without_home(str(folder))}: {', '.join(parts) or 'empty'}")
    from huggingface_hub.constants import HF_HUB_CACHE

    hub = Path(HF_HUB_CACHE)
    yield Finding(
        "downloads", True, f"{without_home(str(hub))}: {readable(_size(hub)) if hub.is_dir() else 'nothing'}"
    )


def _size(folder: Path) -> int:
    files = (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    return sum(path.stat().st_size for path in files)


_SETS: Final = {"cpp": "C++ kernels", "mlx": "MLX's fused operators", "off": "plain MLX operators"}
_EXACT: Final = (
    "bit for bit: answers never depend on chunks, the batch or the schedule, nor do a hybrid model's states"
)
_ROUNDED: Final = (
    "within rounding: MLX picks its kernels by the number of rows, so nearly tied tokens may swap if "
    "chunks, batch or schedule change; a hybrid model's prompts round by where a block of 64 tokens begins"
)
_GRID: Final = {
    True: "--chunk-grid does not change answers; chunk lengths repeat",
    False: "--chunk-grid makes chunk lengths repeat, and with them MLX's choice of kernels; a prompt's last "
    "chunk and the size of a decode batch still vary, so answers are equal only within rounding",
}


def examine(_: None) -> list[Finding]:
    """Whether the kernels are right, which of them run, the default model's answer, and what we promise."""
    set_buffer_limits()  # those that a server has
    named = {"C++ self-test": _cpp_self_test, "GPU self-test": _gpu_self_tests, "kernels": _model}
    return [finding for name, examination in named.items() for finding in findings_of(name, examination)]


def _cpp_self_test() -> Iterator[Finding]:
    """Run again, whatever the last one found."""
    name, mode = "C++ self-test", kernels_mode()
    if mx.default_device() != mx.cpu or mode in ("mlx", "off"):
        yield Finding(name, True, "skipped, because this machine does not use the C++ kernels")
        return
    wrong = first_wrong(native.load(PACKAGES["ref"]))
    says = "every operator agrees with MLX" if wrong is None else f"{wrong} is wrong"
    yield Finding(name, wrong is None, says, "set another TINY_LLM_ISA, and open an issue with this page")


def _gpu_self_tests() -> Iterator[Finding]:
    """Of MLX's fused operators and of our Metal kernels: kept, or made now."""
    if mx.default_device() == mx.gpu and kernels_mode() != "off":
        for verdict in native.verdicts():
            cure = "nothing to do, we use others instead; open an issue with this page"
            yield Finding("GPU self-test", verdict.is_right, f"{verdict.subject}: {verdict.says}", cure)


def _model() -> Iterator[Finding]:
    loaded, mode = load(ModelSettings()), kernels_mode()
    used = "off" if loaded.model.ops is None else loaded.model.ops.name
    on_cpu, isa = mx.default_device() == mx.cpu, f" for {selected_isa().name}" if used == "cpp" else ""
    why = f"{native.VARIABLE}={mode}" + (f", on a {'CPU' if on_cpu else 'GPU'}" if mode == "auto" else "")
    is_wanted = used == mode or (mode == "auto" and used != "off")
    says = f"{_SETS[used]}{isa} ({why})"
    yield Finding("kernels", is_wanted, says, "fix the other lines with a ✗, then run this again")
    yield _answer(loaded)
    if isinstance(tokenizer := loaded.checkpoint.tokenizer, CheckpointTokenizer):
        facts = tokenizer.template_facts
        yield Finding("chat template", not facts.complaint, facts.line(), "fetch the checkpoint again")
    is_exact = used == "cpp"
    yield Finding("equality", True, _EXACT if is_exact else _ROUNDED)
    yield Finding("chunk grid", True, _GRID[is_exact])
    other = "; with 8 prompts are faster and answers less exact" if is_exact else ""
    yield Finding("activations", True, f"of {AUTO_BITS} bits for 4- and 8-bit weights{other}")


def _answer(loaded: Loaded) -> Finding:
    tokenizer, sampling = loaded.checkpoint.tokenizer, SamplingParams(max_tokens=32)
    prompt = as_chat(tokenizer, QUESTION)
    events = loaded.solution.stream_generate(loaded.model, tokenizer, prompt, sampling)
    answer = "".join(event.text for event in events if isinstance(event, TokenEvent))
    is_known = answer == ANSWER
    says = "the default model gives its known answer" if is_known else f"{answer!r} is not {ANSWER!r}"
    cure = f"try {native.VARIABLE}=off; if that helps, open an issue with this page"
    return Finding("answer", is_known, says, cure)
