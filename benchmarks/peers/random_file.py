"""What another engine loads: a file or folder of a model's shape, written to the cache folder once."""

import hashlib
import json
import os
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Final

from tiny_llm_lab.runtime.cache import cache_folder
from tiny_llm_lab.types import ModelConfig, UserError

# Part of every path: raise it when the same shape would get other contents.
_VERSION: Final = "v1"


def find_or_write(kind: str, config: ModelConfig, name: str, write: Callable[[Path], None]) -> Path:
    """Where the cache folder's `kind` has `config` as `name`; `write` makes it at the path it gets."""
    key = hashlib.sha256(json.dumps(asdict(config), sort_keys=True).encode()).hexdigest()[:16]
    path = cache_folder() / kind / _VERSION / f"{config.model_type}-{key}-{name}"
    if path.exists():
        return path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            unfinished = Path(folder) / path.name
            write(unfinished)
            unfinished.rename(path)
        os.sync()  # otherwise it would be written to disk while the first run is being timed
    except OSError as error:
        raise UserError(f"{path}: cannot write it ({error.strerror}): set TINY_LLM_CACHE") from None
    return path
