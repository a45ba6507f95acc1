"""Folders that are written once."""

from itertools import count
from pathlib import Path

from tiny_llm_lab.types import UserError


def new_folder(out: Path) -> Path:
    """Make the folder `out`, with a number if it exists. Raises UserError if that fails."""
    folders = (out.with_name(f"{out.name}-{number}") if number > 1 else out for number in count(1))
    try:
        folder = next(folder for folder in folders if not folder.exists())
        folder.mkdir(parents=True)
    except OSError as error:
        raise UserError(f"cannot write to {out}: {error.strerror}: choose another --out") from None
    return folder
