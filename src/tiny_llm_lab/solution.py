"""The one switch: whose code do the commands, benchmarks and tests run?"""

import importlib
from typing import cast

from tiny_llm_lab.types import Solution, UserError

PACKAGES = {"mine": "tiny_llm", "ref": "tiny_llm_ref", "mlx-lm": "tiny_llm_lab.baselines.mlx_lm"}


def load_solution(name: str = "mine") -> Solution:
    """Import the solution called `name`: "mine", "ref" or "mlx-lm"."""
    if name not in PACKAGES:
        raise UserError(f"unknown solution {name!r}: choose one of {', '.join(PACKAGES)}")
    return cast(Solution, importlib.import_module(PACKAGES[name]))
