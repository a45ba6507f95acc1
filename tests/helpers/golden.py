"""What tests/golden has: arrays that other libraries computed, and rows of JSON."""

import json
from pathlib import Path
from typing import Any

import numpy as np

GOLDEN = Path(__file__).resolve().parents[1] / "golden"


Arrays = dict[str, np.ndarray]


def golden(name: str, script: str = "make_hybrid_golden", library: str = "transformers") -> Arrays:
    """The arrays that `script` recorded of the checkpoint `name`."""
    path = GOLDEN / f"{library}-{name.removeprefix('random:')}.npz"
    assert path.exists(), f"{path.name} is missing: run tests/golden/{script}.py {name}"
    with np.load(path) as arrays:
        return dict(arrays)


def rows_of(name: str) -> list[dict[str, Any]]:
    """The rows of a file of JSON that has one a line."""
    return [json.loads(line) for line in (GOLDEN / f"{name}.jsonl").read_text("utf-8").splitlines()]
