"""The flags of `test` and `test-ref`, which hand them on to pytest: what is run, and on which operators."""

from typing import Any

FLAGS: dict[str, dict[str, Any]] = {
    "--week": {"type": int, "help": "only the tests of this week"},
    "--day": {"help": "only the tests of this day: --week 2 --day 7, or --day 2.7"},
    "--task": {"help": "only the tests of this task, as in --task 2.7.3"},
    "--kernels": {
        "choices": ("off", "cpp", "mlx"),
        "help": "what models compute with, unless a test chooses (default: TINY_LLM_KERNELS, or else off)",
    },
    "--full": {"action": "store_true", "help": "also the tests that take minutes"},
}
