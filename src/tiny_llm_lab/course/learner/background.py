"""`explain` in a process of its own, while you read what failed."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from tiny_llm_lab.course.grading.run_tests import environment

_NICE: Final = 10  # what you do meanwhile comes first


class Explaining:
    """`explain` of one task, started now; what it has said so far is in files."""

    def __init__(self, root: Path, task: str) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="tiny-llm-", ignore_cleanup_errors=True)
        folder = Path(self._folder.name)
        self._said, self._progress = folder / "said", folder / "progress"
        with self._said.open("w") as said, self._progress.open("w") as progress:
            self._process = subprocess.Popen(
                ["nice", "-n", str(_NICE), sys.executable, "-m", "tiny_llm_lab", "explain", task],
                cwd=root,
                env=environment() | {"TMPDIR": self._folder.name},  # of what `stop` interrupts, too
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=progress,
                start_new_session=True,
            )

    def said(self) -> str | None:
        """What it says; None as long as it is at work."""
        if self._process.poll() is None:
            return None
        return self._said.read_text().strip() or self._progress.read_text().strip()

    def progress(self) -> str:
        """How far it is, in a line."""
        lines = self._progress.read_text().splitlines()
        return f"explain: {lines[-1] if lines else 'it starts ...'}"

    def stop(self) -> None:
        """End it, with the processes that it has started."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._folder.cleanup()
