"""Names of checkpoints, and their folders."""

import re
from pathlib import Path

from tiny_llm_lab.types import UserError

DEFAULT = "default"
# The models that come with the package, by name.
SHIPPED = {name: Path(__file__).parent / name.replace("-", "_") for name in (DEFAULT, "default-hybrid")}
RANDOM_PREFIX = "random:"
HUB_IDS = {
    "qwen3-0.6b": "Qwen/Qwen3-0.6B",
    "qwen3-1.7b": "Qwen/Qwen3-1.7B",
    "qwen3-4b": "Qwen/Qwen3-4B",
    "qwen3-8b": "Qwen/Qwen3-8B",
    "qwen2.5-0.5b": "Qwen/Qwen2.5-0.5B-Instruct",
    "qwen2.5-7b": "Qwen/Qwen2.5-7B-Instruct",
    "qwen3-0.6b-4bit": "mlx-community/Qwen3-0.6B-4bit",
    "qwen3-1.7b-4bit": "mlx-community/Qwen3-1.7B-4bit",
    "qwen3-4b-4bit": "mlx-community/Qwen3-4B-4bit",
    "qwen3-8b-4bit": "mlx-community/Qwen3-8B-4bit",
    "qwen2.5-0.5b-4bit": "mlx-community/Qwen2.5-0.5B-Instruct-4bit",
    "qwen2.5-7b-4bit": "mlx-community/Qwen2.5-7B-Instruct-4bit",
}
_HUB_ID = re.compile(r"[\w-][\w.-]*/[\w.-]+")


def find_folder(name: str) -> Path:
    """The folder of the checkpoint called `name`: made, downloaded or only looked up."""
    if name in SHIPPED:
        return _shipped_folder(name)
    if name.startswith(RANDOM_PREFIX):
        from tiny_llm_lab.runtime.models.random.random_checkpoint import find_or_make

        return find_or_make(name.removeprefix(RANDOM_PREFIX))
    folder = _existing(name)
    if name in HUB_IDS or (folder is None and _HUB_ID.fullmatch(name)):
        from tiny_llm_lab.runtime.models.hub import download

        return download(HUB_IDS.get(name, name))
    if folder is not None and folder.is_dir():
        return folder
    if folder is not None:
        raise UserError(f"{name} is a file: name the folder that it is in")
    if "/" in name or name.startswith(("~", ".")):
        raise UserError(f"{name} is not a folder: name one with a checkpoint, or use {DEFAULT!r}")
    known = ", ".join([*SHIPPED, *HUB_IDS])
    raise UserError(
        f"unknown model {name!r}: choose one of {known}, a local folder, a hub id such as "
        f"{HUB_IDS['qwen3-0.6b']}, or {RANDOM_PREFIX}qwen3-0.6b"
    )


def _existing(name: str) -> Path | None:
    try:
        path = Path(name).expanduser()
        return path if path.exists() else None
    except (OSError, RuntimeError, ValueError):  # too long, an unknown user, a zero byte
        return None


def _shipped_folder(name: str) -> Path:
    folder = SHIPPED[name]
    if not folder.is_dir():
        raise UserError(f"the {name} model is missing in {folder}: restore it with git, or install again")
    return folder
