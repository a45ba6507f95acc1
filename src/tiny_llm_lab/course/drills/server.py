"""A server of the reference with one mistake in it, until Ctrl-C."""

import contextlib
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tiny_llm_lab.course.grading.run_tests import environment
from tiny_llm_lab.course.manifest import Course
from tiny_llm_lab.course.mistake import Mistake


def write_copy(course: Course, mistake: Mistake, package: Path) -> None:
    """Write the reference with a mistake to the new folder `package`. Raises UserError for a stale one."""
    wrong = mistake.apply(course.reference / mistake.file)
    shutil.copytree(course.reference, package, ignore=shutil.ignore_patterns("__pycache__"))
    (package / mistake.file).write_text(wrong, encoding="utf-8")


def serve_with(course: Course, mistake: Mistake, arguments: Sequence[str]) -> int:
    """Run `serve` on such a copy, in a process whose last lines and exit code are this one's."""
    with tempfile.TemporaryDirectory(prefix="tiny-llm-") as folder:
        write_copy(course, mistake, Path(folder) / course.reference.name)
        command = [sys.executable, "-m", "tiny_llm_lab", "serve", *arguments]
        # SIGTERM would leave the server running.
        before = signal.signal(signal.SIGTERM, signal.default_int_handler)
        server = subprocess.Popen(command, env=environment(), cwd=folder)
        try:
            return server.wait()
        except KeyboardInterrupt:  # Ctrl-C reaches the server as well, which finishes what it has begun
            with contextlib.suppress(KeyboardInterrupt):
                return server.wait()
            return 0
        finally:
            signal.signal(signal.SIGTERM, before)
            if server.poll() is None:
                server.terminate()
                server.wait()
