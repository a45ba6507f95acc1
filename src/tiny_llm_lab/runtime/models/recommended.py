"""The sampling that a checkpoint recommends, which servers and benchmarks take unless they are told."""

from pathlib import Path
from typing import Final

from tiny_llm_lab.runtime.models.config.fields import read_json

# What a checkpoint's generation_config.json may preset.
PRESETS: Final = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


def recommended_sampling(folder: Path) -> dict[str, float]:
    """The fields of `PRESETS` in generation_config.json; do_sample: false is greedy decoding, {} nothing."""
    file = folder / "generation_config.json"
    declared = read_json(file) if file.exists() else {}
    presets = {name: declared[name] for name in PRESETS if isinstance(declared.get(name), int | float)}
    return presets | ({"temperature": 0.0} if declared.get("do_sample") is False else {})
