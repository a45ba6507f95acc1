"""Runs one measurement in a fresh process, so that nothing of the one before it is warm or in the way."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from tiny_llm_lab.commands.cli_errors import UnwrittenError
from tiny_llm_lab.types import UserError

from .sample import Spec


class CrashError(Exception):
    """The process ended without a sample; the message is what it said on stderr."""


def run_child(spec: Spec) -> dict[str, Any]:
    """The sample and facts that the process reports; raises what `run_module` raises."""
    return run_module("tiny_llm_lab.bench.sample", spec.to_json())


def run_module(module: str, request: str, environment: Mapping[str, str] | None = None) -> dict[str, Any]:
    """What `python -m module` answers to `request` on its stdin.

    Raises UserError for what the user can mend, UnwrittenError for an unwritten task and
    CrashError for anything else.
    """
    done = subprocess.run(
        [sys.executable, "-m", module],
        input=request,
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": _search_path()} | dict(environment or {}),
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
        raise CrashError(stderr.strip() or "the process ended without a word")
    if "error" in value:
        raise UserError(value["error"])
    if "todo" in value:
        raise UnwrittenError(value["todo"])
    return cast(dict[str, Any], value)


def _search_path() -> str:
    # The child must find the very package that runs here, installed or not.
    source = str(Path(__file__).parents[2])
    return os.pathsep.join(filter(None, [source, os.environ.get("PYTHONPATH")]))
