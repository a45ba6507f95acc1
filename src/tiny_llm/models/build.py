"""Chooses, once, what a model computes with."""

from tiny_llm_lab.types import Checkpoint

from .model import Qwen
from .qwen import QwenModel


def build_model(checkpoint: Checkpoint) -> QwenModel | Qwen:
    """Returns the model of a loaded checkpoint."""
    raise NotImplementedError("task 1.5.4")
