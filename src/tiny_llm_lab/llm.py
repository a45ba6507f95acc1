"""Kept for programs that import it from here: `LLM` is in `serving.llm`."""

from tiny_llm_lab.serving.llm import LLM

__all__ = ["LLM"]
