"""Kept for programs that import it from here: `load_checkpoint` is in `runtime.models`."""

from tiny_llm_lab.runtime.models import load_checkpoint

__all__ = ["load_checkpoint"]
