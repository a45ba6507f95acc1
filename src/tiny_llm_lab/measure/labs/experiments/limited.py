"""A prompt that runs out of memory in one piece and not in chunks: plain attention under a limit.

As a program it is the child process: `python -m ...limited CHUNK ROOM`, ROOM in bytes, 0 is no limit.
"""

import subprocess
import sys
from pathlib import Path
from typing import Final

import mlx.core as mx

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
