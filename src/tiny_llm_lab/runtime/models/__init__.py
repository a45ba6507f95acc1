"""Checkpoints: where they come from and how they are loaded."""

from tiny_llm_lab.runtime.models.loading import load_checkpoint

__all__ = ["load_checkpoint"]
