"""A process that has imported what most tests need, and runs pytest once it is told on what.

Importing takes longer than most tests. The learner's package is not imported ahead: it is about to change.
"""

import importlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tiny_llm_lab.course.grading.run_tests import environment
from tiny_llm_lab.course.grading.sandbox import PRELOADED

_MODULE: Final = "tiny_llm_lab.course.grading.spare"
_IMPORTED: Final = (*PRELOADED, "mlx.core", "tiny_llm_lab.course.grading.plugin")


class Spare:
    """Runs pytest, each time in the process that waits, and starts the next one, which imports meanwhile.

    The processes are not in the terminal's group, where Ctrl-C would show what each was importing.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._waiting = self._started()

    def run(self, arguments: Sequence[str]) -> int:
        """pytest's exit code; it prints where this process prints."""
        process = self._waiting
        process.communicate(json.dumps(list(arguments)))
        self._waiting = self._started()
        return process.returncode

    def close(self) -> None:
        """End the process that waits or, after Ctrl-C, the one that runs, and what that has started."""
        if self._waiting.poll() is None:
            os.killpg(self._waiting.pid, signal.SIGKILL)
        self._waiting.communicate()

    def _started(self) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [sys.executable, "-m", _MODULE],
            cwd=self._root,
            env=environment(),
            stdin=subprocess.PIPE,
            text=True,
            process_group=0,
        )


def main() -> int:
    """Wait for pytest's arguments on stdin, and run it; 0 if none come."""
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")  # it would say that PyTorch is missing
    for name in _IMPORTED:
        importlib.import_module(name)
    import pytest

    told = sys.stdin.read()
    return int(pytest.main(json.loads(told))) if told else 0


if __name__ == "__main__":
    sys.exit(main())
