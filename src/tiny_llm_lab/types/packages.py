"""The packages that --solution names."""

from typing import Final

PACKAGES: Final = {
    "mine": "tiny_llm",
    "ref": "tiny_llm_ref",
    "mlx-lm": "tiny_llm_lab.runtime.baselines.mlx_lm",
}
