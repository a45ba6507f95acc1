"""`memory`: the peak memory of a long prefill, by chunk size."""

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Final, cast

import mlx.core as mx
from matplotlib.figure import Figure

from tiny_llm_lab.measure.bench.chunk_memory import MEMORY_COLUMNS, memory_rows
from tiny_llm_lab.measure.bench.report import Row, Section
from tiny_llm_lab.measure.labs.lab import LabSetup, OwnLab
from tiny_llm_lab.measure.labs.result import Claim, Finding, LabResult, judged, over_budgets
from tiny_llm_lab.runtime.steps.runner import StepRunner, chunk
from tiny_llm_lab.runtime.task_names import TaskNames
from tiny_llm_lab.serving.options.engine_settings import ModelSettings
from tiny_llm_lab.serving.options.model_options import load
from tiny_llm_lab.types import UserError

_LENGTH, _CHUNK, _HEADS, _DIM = 4096, 256, 4, 32
# The scores of the whole prompt take 268 MB at once, those of a chunk 17 MB at most.
_ROOM: Final = 160 * 2**20
_TIMEOUT_S: Final = 120


def out_of_memory_line() -> str:
    """One line: whether the prompt fails in one piece and succeeds in chunks, in a process with a limit."""
    if sys.platform == "darwin":
        return "Out of memory in one piece: not tried, because macOS does not hold a process to RLIMIT_AS."
    # Without a limit first: then a failure is the limit's.
    if not all(_succeeds(chunk, 0) for chunk in (_LENGTH, _CHUNK)):
        return "Out of memory in one piece: not tried, because the child process fails without a limit, too."
    whole, chunks = (_succeeds(chunk, _ROOM) for chunk in (_LENGTH, _CHUNK))
    ends = {True: "succeeds", False: "fails"}
    return (
        f"Plain attention over {_LENGTH:,} tokens with {_ROOM / 1e6:.0f} MB to spare {ends[whole]} in one "
        f"piece and {ends[chunks]} in chunks of {_CHUNK}."
    )


def _succeeds(chunk: int, room_bytes: int) -> bool:
    words = [sys.executable, "-m", __name__, str(chunk), str(room_bytes)]
    try:
        return subprocess.run(words, capture_output=True, timeout=_TIMEOUT_S, check=False).returncode == 0
    except subprocess.TimeoutExpired:
        return False


def _attend(keys: mx.array, start: int, size: int) -> None:
    """The attention of one chunk, with all its scores in memory."""
    seen = keys[:, : start + size]
    scores = seen[:, start:] @ seen.swapaxes(-1, -2)
    visible = mx.arange(start + size) <= mx.arange(start, start + size)[:, None]
    mx.eval(mx.softmax(mx.where(visible, scores, -mx.inf), axis=-1) @ seen)


def _child(chunk: int, room_bytes: int) -> None:
    mx.set_default_device(mx.cpu)
    mx.set_cache_limit(0)
    keys = mx.random.normal((_HEADS, _LENGTH, _DIM), key=mx.random.key(0))
    _attend(keys, 0, 16)  # threads and buffers exist before the limit counts
    if room_bytes:
        import resource  # not on every platform

        pages = int(Path("/proc/self/statm").read_text("ascii").split()[0])
        limit = pages * resource.getpagesize() + room_bytes
        # No core file of the crash that we want.
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    for start in range(0, _LENGTH, chunk):
        _attend(keys, start, min(chunk, _LENGTH - start))


if __name__ == "__main__":
    _child(int(sys.argv[1]), int(sys.argv[2]))


_SIZES: Final = (256, 512, 1024, 2048)
_BLOCK_SIZE: Final = 16
_SCORE_BYTES: Final = 2  # of the sources' arithmetic, bfloat16


def run(setup: LabSetup) -> LabResult:
    if not setup.servers.is_own:
        raise UserError("`lab memory` measures an engine in its own process: leave out --server")
    loaded = load(ModelSettings(setup.model, setup.solution, setup.device, setup.dtype))
    length = setup.long_tokens
    sizes = [*(size for size in _SIZES if size < length), length]
    llm = TaskNames(cast(ModuleType, loaded.solution))
    with StepRunner(llm, loaded.model, [chunk(0, length)], setup.seed, block_size=_BLOCK_SIZE) as runner:
        rows, pool_bytes = memory_rows(runner, length, sizes)
    heads = loaded.model.config.num_attention_heads
    title = f"prefill of a prompt of {length} tokens, by chunk size"
    data = {"tokens": length, "pool_bytes": pool_bytes, "heads": heads}
    section = Section("memory", title, MEMORY_COLUMNS, rows, data=data)
    result = finding(rows, length, sizes[0], pool_bytes, heads)
    result = replace(result, conclusion=[*result.conclusion, out_of_memory_line()])
    return LabResult("memory", LAB.question, section, result, partial(draw, rows, sizes))


def finding(rows: Sequence[Row], length: int, smallest: int, pool_bytes: int, heads: int) -> Finding:
    """What chunks save, of the memory above weights and blocks and of all memory."""
    first, whole = rows[0], rows[-1]
    above, total = (
        whole.median(key) / first.median(key) if first.median(key) else float("inf")
        for key in ("above_held_bytes", "peak_bytes")
    )
    scores_mb = heads * length**2 * 4 / 1e6
    above_mb = whole.median("above_held_bytes") / 1e6
    saved_mb = (whole.median("peak_bytes") - first.median("peak_bytes")) / 1e6
    sentences = [
        f"Chunks of {smallest} tokens save {saved_mb:.1f} MB of a peak of "
        f"{whole.median('peak_bytes') / 1e6:.1f} MB: {above:.1f} times less above weights and "
        f"blocks, {total:.2f} times less of all memory.",
        f"The {pool_bytes / 1e6:.1f} MB of keys and values are the same with every chunk size.",
    ]
    claims = [
        *arithmetic_claims(),
        judged(
            "A prompt in one piece holds its n x n scores",
            False if above_mb < scores_mb else None,  # as much may be activations as well
            f"{above_mb:.1f} MB above weights and blocks; the scores of a layer would be {scores_mb:.0f} MB",
        ),
        judged(
            "Memory shrinks by prompt / chunk (10 to 15 times)",
            total >= 0.9 * length / smallest,
            f"prompt / chunk is {length / smallest:.1f}; all memory shrinks {total:.2f} times, what is above "
            f"weights and blocks {above:.1f} times",
        ),
    ]
    return Finding(sentences, claims)


def arithmetic_claims() -> list[Claim]:
    """The sources' numbers, computed again."""
    most, long, size = 32_768, 30_000, 2048
    return [
        judged(
            "32,768 squared is 1,073,741,824 scores, 2 GiB of bfloat16",
            most**2 == 1_073_741_824 and most**2 * _SCORE_BYTES == 2 * 2**30,
            f"{most**2:,} scores, {most**2 * _SCORE_BYTES / 2**30:g} GiB, for one head of one layer",
        ),
        judged(
            "30,000 squared takes 1.8 GB, 2048 x 30,000 122.9 MB: 14.65 times less",
            round(long / size, 2) == 14.65,
            f"{long**2 * _SCORE_BYTES / 1e9:g} GB and {size * long * _SCORE_BYTES / 1e6:.1f} MB, "
            f"{long / size:.2f} times; fused attention holds neither",
        ),
    ]


def draw(rows: Sequence[Row], sizes: Sequence[int], figure: Figure) -> None:
    """Peak memory over the chunk size: above weights and blocks, and all of it."""
    left, right = figure.subplots(1, 2)
    panels = ((left, "above_held_bytes", "above weights and blocks"), (right, "peak_bytes", "all memory"))
    for axes, key, title in panels:
        over_budgets(axes, f"peak memory: {title}", sizes, rows, key, 1e-6, "MB")
        axes.set_xlabel("chunk size (tokens)")


LAB: Final = OwnLab("How much memory do chunks save?", run)
