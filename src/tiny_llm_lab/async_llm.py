"""Kept for programs that import it from here: `AsyncLLM` is in `serving.async_llm`."""

from tiny_llm_lab.serving.async_llm import AsyncLLM

__all__ = ["AsyncLLM"]
