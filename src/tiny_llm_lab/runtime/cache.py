"""Where files are kept that can be made again."""

import os
from pathlib import Path


def cache_folder() -> Path:
    """TINY_LLM_CACHE, or tiny-llm in the user's cache folder."""
    if own := os.environ.get("TINY_LLM_CACHE"):
        return Path(own).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "tiny-llm"
