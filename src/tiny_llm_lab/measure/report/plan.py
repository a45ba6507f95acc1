"""The parts of a report, short ones first: time may run out. Each is a command in a process of its own."""

import importlib.util
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal

import mlx.core as mx

from tiny_llm_lab.measure.doctor.machine import without_home
from tiny_llm_lab.runtime.checkout import repository
from tiny_llm_lab.runtime.console.input_file import json_object
from tiny_llm_lab.runtime.console.talk import log
from tiny_llm_lab.runtime.native import VARIABLE
from tiny_llm_lab.runtime.native.compiling.build import NoCompilerError, compiler
from tiny_llm_lab.types import Clock

Document = Mapping[str, Any]
Status = Literal["done", "failed", "interrupted", "left out"]
_TWICE_S: Final = 2.0  # a second Ctrl-C within this time ends the report
_LAST_LINES, _LONGEST_SAID = 3, 300


@dataclass(frozen=True)
class Part:
    """A command; `says_json`: the last line of its stdout is a document, and otherwise a summary.

    `lacks`: why it can't be run here, if a tool that it needs is missing.
    """

    title: str
    command: Sequence[str]
    limit_s: float
    says_json: bool = True
    environment: Mapping[str, str] = field(default_factory=dict)
    lacks: str = ""


@dataclass(frozen=True)
class Outcome:
    """The outcome of a part. `said`: its last lines, from stderr if it failed."""

    part: Part
    status: Status
    seconds: float = 0.0
    said: str = ""
    document: Document | None = None

    def to_json(self) -> dict[str, Any]:
        """Everything but the command's own paths."""
        own = {"title": self.part.title, "status": self.status, "seconds": round(self.seconds, 1)}
        return own | {"said": self.said, "document": self.document}


def outcomes(parts: Sequence[Part], limit_s: float, clock: Clock = time.monotonic) -> Iterator[Outcome]:
    """Run the parts in order until `limit_s` has passed; the rest goes on after one that fails.

    Ctrl-C ends the part that runs, and a second one within two seconds leaves the others out.
    """
    start_s, interrupted_s, is_ended = clock(), -_TWICE_S, False
    for number, part in enumerate(parts, 1):
        left_s = limit_s - (clock() - start_s)
        if part.lacks:
            yield Outcome(part, "left out", said=part.lacks)
            continue
        if is_ended or left_s <= 0:
            yield Outcome(part, "left out", said="interrupted" if is_ended else "the time was up")
            continue
        log(f"{number} of {len(parts)}: {part.title} ...")
        began_s = clock()
        try:
            status, message, document = _run(part, min(left_s, part.limit_s))
        except KeyboardInterrupt:
            is_ended, interrupted_s = clock() - interrupted_s < _TWICE_S, clock()
            then = "left out" if is_ended else "next; a second Ctrl-C within two seconds ends the report"
            log(f"interrupted; the rest is {then}")
            status, message, document = "interrupted", "", None
        if status == "failed":
            log(f"failed: {message}")
        yield Outcome(part, status, clock() - began_s, message, document)


def _run(part: Part, limit_s: float) -> tuple[Status, str, Document | None]:
    process = subprocess.Popen(
        part.command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **part.environment},
        start_new_session=True,  # with its own children, so that none of them goes on
    )
    try:
        out, err = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        return "failed", f"took more than {limit_s:.0f} s", None
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    # A command that finds something wrong prints its document as well.
    document = json_object(out.strip().rpartition("\n")[2]) if part.says_json else None
    is_done = document is not None if part.says_json else process.returncode == 0
    message = _last(err if part.says_json else out or err)
    return "done" if is_done else "failed", message, document


def _last(text: str) -> str:
    return without_home(" / ".join(text.strip().splitlines()[-_LAST_LINES:]))[-_LONGEST_SAID:]


LENGTHS: Final = (128, 512, 2048)
STREAMS: Final = (1, 2, 4, 8)
HYBRID: Final = "random:qwen3.5-0.8b,bits=4"  # mlx-lm as a baseline has no caches for one
WIDE: Final = "random:qwen3.5-9b,bits=4,layers=8"
_STALLED: Final = "--num-long 1 --long-tokens 9000 --num-short 5 --max-tokens 64 --repeats 1 --prefill-steps"
_CHUNKED: Final = ("--repeats", "1", "--prefill-step", "512")
PROMPT: Final = "prompt.txt"  # a file of the folder, for a restart
STEP_TIMES: Final = "step-times.json"
_CONTEXTS: Final = (1024, 4096, 16_384)
_ANSWER: Final = 64  # tokens; enough for the decodes of four streams with 8,192 tokens in chunks to overlap
_LAB: Final = "tiny_llm_lab"
_PART_LIMIT_S: Final = 180.0
_TESTS_LIMIT_S: Final = 300.0
# By MLX's own limits, by ours, and with few: when MLX ends a command buffer.
_BUFFERS: Final = {
    f", {size} Mi elements a command buffer": {"MLX_MAX_MB_PER_BUFFER": str(size)} for size in (40, 200, 1000)
}
# Of the model on MLX's operators; those of Metal run on the GPU where there is one, and else on an emulation.
_MLX_TESTS: Final = (
    "tests/test_default_model.py",
    *(f"tests/week_3/test_day_{day}.py" for day in ("7_ahead", "6_engine", "2_metal")),
    *(f"tests/week_2/test_day_{day}.py" for day in ("3_metal", "5_metal")),
)


@dataclass(frozen=True)
class Plan:
    """What to measure; `folder` gets what the commands write. `is_quick` is a rehearsal with small sizes."""

    model: str
    folder: Path
    is_quick: bool = False
    sampling: tuple[str, ...] = ()  # flags of every benchmark; without any, the model's own is measured

    def parts(self) -> Iterator[Part]:
        """All of them, in order."""
        yield _lab("doctor", "doctor", limit_s=_TESTS_LIMIT_S)
        yield self._tests("tests of the model on MLX's operators", *_MLX_TESTS, kernels="mlx")
        rounds = ("--rounds", "3" if self.is_quick else "9")
        context = ("--context", "128" if self.is_quick else "512")
        yield self._engine("mixed | alternate", "mixed", *rounds, *context)
        yield self._engine("paged | dense", "paged", *rounds, *context)
        for name, limits in (_BUFFERS if mx.metal.is_available() else {"": {}}).items():
            ahead = self._engine(f"ahead | not{name}", "ahead", *rounds, *context)
            yield replace(ahead, environment={**ahead.environment, **limits})
        for tokens in _CONTEXTS[:1] if self.is_quick else _CONTEXTS:
            yield self._engine(f"memory, prompt of {tokens}", "memory", "--memory-tokens", str(tokens))
        for length in LENGTHS[:1] if self.is_quick else LENGTHS:
            for streams in STREAMS:
                yield self._throughput(length, streams)
        greedy = self.sampling or ("--temperature=0",)
        slow = "it takes minutes on a CPU" if mx.default_device() == mx.cpu else ""
        # Real widths and a quarter of the layers, which every Mac holds.
        wide, widths = replace(self, model=WIDE, sampling=greedy), () if self.is_quick else (1, 4, 8)
        yield from (replace(wide._speed("9B", 512, n, *_CHUNKED), lacks=slow) for n in widths)
        hybrid = replace(self, model="default-hybrid" if self.is_quick else HYBRID, sampling=greedy)
        yield from hybrid._of_a_hybrid()
        times = ("--calibration-out", str(self.folder / STEP_TIMES))
        yield self._engine("step times, for simulate --machine", "chunk-position", *rounds, *times)
        repeats = ("--repeats", self._repeats(4), "--out", str(self.folder))
        sizes = ("--prefill-steps", "128", "999999") if self.is_quick else ()
        yield self._measured("latencies across prefill_step", "bench-chunked-prefill", *repeats, *sizes)
        hol = ("lab", "hol", "--quick", "--model", self.model, *self.sampling, "--out", str(self.folder))
        yield _said("a long prompt among running answers", *hol)
        yield _said("no chunk size changes an answer", "diverge", "--grid", "--a", f"--model {self.model}")
        yield self._tests("tests of the C++ kernels", "tests/kernels", kernels="cpp")

    def _of_a_hybrid(self) -> Iterator[Part]:
        """Speeds, what a long prompt does to two answers and to memory by its chunks, and a restart."""
        name, long, most = ("small hybrid", 1024, 2048) if self.is_quick else ("hybrid", 8192, 32_768)
        on_cpu = mx.default_device() == mx.cpu
        for length, streams in (*((512, streams) for streams in STREAMS), (long, 1), (long, 4), (most, 1)):
            # Whole, 32,768 tokens with heads of 256 would write out 17 GB of scores.
            part = self._speed(name, length, streams, *_CHUNKED)
            is_long = length * streams > 8192
            yield replace(part, lacks="it takes minutes on a CPU" if on_cpu and is_long else "")
        steps = ("128", "2048") if on_cpu else ("128", "512", "1024", "2048", "4096", "8192")
        flags = (_STALLED.replace("9000", "900") if self.is_quick else _STALLED).split()
        title = f"{name}, two streams while a long prompt arrives"
        yield self._measured(title, "bench-chunked-prefill", "--out", str(self.folder), *flags, *steps)
        again = f"batch-main --engine --raw --max-tokens 8 --model {self.model} --prompts".split()
        again += [f"{self.folder / PROMPT}", f"--prefix-cache-dir={self.folder / 'prefixes'}", *self.sampling]
        yield _said(f"{name}, a prompt for the first time", *again)
        yield _said(f"{name}, it again after a restart", *again)

    def _throughput(self, length: int, streams: int) -> Part:
        more = f"--baseline-prompt-len {length} --baseline-output-len {_ANSWER} --baselines mlx-lm --repeats"
        return self._speed("throughput", length, streams, *more.split(), self._repeats(2))

    def _speed(self, of: str, length: int, streams: int, *more: str) -> Part:
        flags = f"--prompt-len {length} --output-len {_ANSWER} --batch {streams}".split()
        return self._measured(f"{of}, {streams} x {length}", "bench", *flags, *more)

    def _repeats(self, on_gpu: int) -> str:
        """Half as many on a CPU, where mlx-lm computes some hundred tokens per second."""
        return "1" if self.is_quick else str(on_gpu // 2 if mx.default_device() == mx.cpu else on_gpu)

    def _measured(self, title: str, *arguments: str) -> Part:
        return _lab(title, *arguments, "--model", self.model, *self.sampling)

    def _engine(self, title: str, experiment: str, *arguments: str) -> Part:
        """A benchmark of the clone's own package for those who change the engine."""
        part = self._measured(title, "bench-engine", "--experiment", experiment, *arguments)
        command = [each if each != _LAB else "benchmarks" for each in part.command]
        # It is not installed: the clone has it, wherever the report is started.
        paths = [str(repository()), *filter(None, [os.environ.get("PYTHONPATH")])]
        return replace(part, command=command, environment={"PYTHONPATH": os.pathsep.join(paths)})

    def _tests(self, title: str, *paths: str, kernels: str) -> Part:
        missing = _missing_compiler()
        # The tests of Metal compile its kernels as C++ once more, to see what a GPU doesn't tell.
        words = [*(["not long"] if self.is_quick else []), *(["not emulated"] if missing else [])]
        chosen = [*(("-k", " and ".join(words)) if words else ()), *(("-x",) if self.is_quick else ())]
        files = [str(repository() / path) for path in paths[: 1 if self.is_quick else None]]
        flags = "-m pytest --solution ref -q --tb=line -p no:cacheprovider".split()
        command = (sys.executable, *flags, *chosen, *files)
        lacks = missing if kernels == "cpp" else ""
        if importlib.util.find_spec("pytest") is None:
            lacks = "pytest is not installed: run ./pdmw install"
        return Part(title, command, _TESTS_LIMIT_S, False, {VARIABLE: kernels}, lacks)


def _missing_compiler() -> str:
    try:
        compiler()
    except NoCompilerError as error:
        return str(error)
    return ""


def default_model() -> str:
    """On a GPU one of the size that its figures are known for, made here; a CPU measures the shipped one."""
    return "default" if mx.default_device() == mx.cpu else "random:qwen3-0.6b,bits=4"


def _lab(title: str, *arguments: str, limit_s: float = _PART_LIMIT_S) -> Part:
    return Part(title, (sys.executable, "-m", _LAB, *arguments, "--json"), limit_s)


def _said(title: str, *arguments: str) -> Part:
    """A command whose last lines are its result."""
    return replace(_lab(title), command=(sys.executable, "-m", _LAB, *arguments), says_json=False)
