"""What a model's name stands for: the shipped one, a short name, a hub id, a folder or a random one."""

from pathlib import Path

from tiny_llm_lab.models.hub import download
from tiny_llm_lab.types import UserError

DEFAULT_FOLDER = Path(__file__).parent / "default"
SHORT_NAMES = {
    "qwen3-0.6b": "Qwen/Qwen3-0.6B",
    "qwen3-1.7b": "Qwen/Qwen3-1.7B",
    "qwen3-4b": "Qwen/Qwen3-4B",
    "qwen3-8b": "Qwen/Qwen3-8B",
    "qwen2.5-0.5b": "Qwen/Qwen2.5-0.5B-Instruct",
    "qwen2.5-7b": "Qwen/Qwen2.5-7B-Instruct",
}
SHORT_NAMES |= {
    f"{short}-4bit": f"mlx-community/{hub_id.partition('/')[2]}-4bit" for short, hub_id in SHORT_NAMES.items()
}


def find_folder(name: str) -> Path:
    """The folder of the checkpoint called `name`, downloaded or made if need be."""
    if name == "default":
        return DEFAULT_FOLDER
    if name.startswith("random:"):
        from tiny_llm_lab.models.random_checkpoint import find_or_make

        return find_or_make(name.removeprefix("random:"))
    folder = Path(name).expanduser()
    if folder.is_dir():
        return folder
    if name in SHORT_NAMES:
        return download(SHORT_NAMES[name])
    if name.count("/") == 1 and not name.startswith((".", "/", "~")):
        return download(name)
    known = ", ".join(["default", *SHORT_NAMES])
    raise UserError(
        f"unknown model {name!r}: give a folder, a hub id (org/name), random:NAME or one of {known}"
    )
