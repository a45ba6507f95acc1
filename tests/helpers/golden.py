"""What other libraries computed, as tests/golden has it."""

from pathlib import Path

import numpy as np

GOLDEN = Path(__file__).parents[1] / "golden"


Arrays = dict[str, np.ndarray]


def golden(name: str, script: str = "make_hybrid_golden", library: str = "transformers") -> Arrays:
    """The arrays that `script` recorded of the checkpoint `name`."""
    path = GOLDEN / f"{library}-{name.removeprefix('random:')}.npz"
    assert path.exists(), f"{path.name} is missing: run tests/golden/{script}.py {name}"
    with np.load(path) as arrays:
        return dict(arrays)
