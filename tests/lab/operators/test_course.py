"""The course's tests of whole models, once more on the `mlx` set: `test-ref --kernels mlx` runs all of them.

Chosen are the files of which some test computes with `MlxOps` then, without those that take longest: draws,
ranks, memory, and of the shipped model all but the chunk sizes.
"""

from pathlib import Path

import pytest
from tests.helpers.processes import finished

from tiny_llm_lab.course.grading.run_tests import environment, pytest_command

ROOT = Path(__file__).parents[3]
FILES = {
    "week 1 and 2": (
        "week_1/test_day_5.py",
        *(f"week_2/test_day_{name}.py" for name in ("1", "6_batch", "7_loop", "7_request")),
    ),
    "week 3": (
        "week_3/test_day_2_model.py",
        *(f"week_3/test_day_6_{name}.py" for name in ("answers", "core", "engine")),
        *(f"week_3/test_day_7_{name}.py" for name in ("ahead", "logprobs")),
        *(f"week_3/test_day_9_{name}.py" for name in ("core", "engine", "stats")),
        "week_3/test_day_10.py",
    ),
    "the shipped model": ("test_default_model.py::test_chunked_prefill_never_changes_the_answer",),
}


@pytest.mark.parametrize(
    "files",
    [
        pytest.param(files, id=name, marks=[pytest.mark.long] * ("shipped" in name))
        for name, files in FILES.items()
    ],
)
def test_models_on_the_fused_operators(files):
    """In a process of its own: the models of a session are built once, on one set."""
    done = finished(
        [
            *pytest_command("ref"),
            *("--kernels", "mlx", "-q", "--no-header", "--tb=short", "--color=no", "-p", "no:cacheprovider"),
            *(f"tests/{file}" for file in files),
        ],
        cwd=ROOT,
        env=environment(),
    )
    assert done.returncode == 0, done.stdout[-4000:]
