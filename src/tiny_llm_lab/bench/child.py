"""A measurement in a fresh process: what the parent asks on stdin, and the one JSON line that answers."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

from tiny_llm_lab.commands.cli_errors import UnwrittenError, todo_line
from tiny_llm_lab.types import UserError


class CrashError(Exception):
    """The process ended without an answer; the message is what it wrote to stderr."""


def run_module(module: str, request: str, environment: Mapping[str, str] | None = None) -> dict[str, Any]:
    """What `python -m module` answers to `request` on its stdin.

    Raises UserError for what the user can mend, UnwrittenError for an unwritten task and
    CrashError for anything else.
    """
    # The child must find the very package that runs here, installed or not.
    source = str(Path(__file__).parents[2])
    path = os.pathsep.join(filter(None, [source, os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, "-m", module],
        input=request,
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": path} | dict(environment or {}),
    )
    return parse_output(done.stdout, done.stderr)


def parse_output(stdout: str, stderr: str) -> dict[str, Any]:
    """What the last line of a child's stdout says."""
    lines = stdout.splitlines()
    try:
        value = json.loads(lines[-1]) if lines else None
    except json.JSONDecodeError:
        value = None
    if not isinstance(value, dict):
        raise CrashError(stderr.strip() or "the process ended without an answer")
    if "error" in value:
        raise UserError(value["error"])
    if "todo" in value:
        raise UnwrittenError(value["todo"])
    return cast(dict[str, Any], value)


def reply(measure: Callable[[str], dict[str, Any]]) -> int:
    """The child's side: measure what stdin asks for; the last line of stdout is the answer."""
    try:
        value = measure(sys.stdin.read())
    except UserError as error:
        value = {"error": str(error)}
    except RuntimeError as error:
        line = todo_line(error)
        if line is None:
            raise
        value = {"todo": line}
    print(json.dumps(value))
    return 0
