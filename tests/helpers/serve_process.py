"""`serve` as a process of its own, on a port that was free."""

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def serve_process(*flags: str) -> Iterator[str]:
    """The address of a server of the default model, on one thread: more of them stall on a busy machine."""
    command = [sys.executable, "-m", "tiny_llm_lab", "serve", "--port", "0", "--threads", "1", *flags]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            lines = []
            for line in process.stderr:
                lines.append(line)
                if found := re.search(r"http://\S+:\d+", line):
                    yield found[0]
                    break
            else:
                raise RuntimeError("".join(lines))
        finally:
            process.terminate()
            process.stderr.read()
