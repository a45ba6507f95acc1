"""Checkpoints from the Hugging Face hub, through its own client and cache."""

from pathlib import Path


def download(repo: str) -> Path:
    raise NotImplementedError(repo)
