"""Kept for programs that import it from here: `load_solution` is in `runtime.solution`."""

from tiny_llm_lab.runtime.solution import load_solution

__all__ = ["load_solution"]
