"""How a measuring process answers: one JSON line, which is the measurement or why there is none."""

import json
import sys
from collections.abc import Callable
from typing import Any

from tiny_llm_lab.commands.cli_errors import todo_line
from tiny_llm_lab.types import UserError


def reply(measure: Callable[[str], dict[str, Any]]) -> int:
    """Measure what stdin asks for; the last line of stdout is the answer."""
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
