"""Everything a learner is given: loading, command line, benchmarks and the course's own tools."""

import importlib

__all__ = ["LLM", "AsyncLLM", "SamplingParams", "load_checkpoint", "load_solution"]

_MODULES = {
    "AsyncLLM": "tiny_llm_lab.async_llm",
    "LLM": "tiny_llm_lab.llm",
    "SamplingParams": "tiny_llm_lab.types",
    "load_checkpoint": "tiny_llm_lab.models",
    "load_solution": "tiny_llm_lab.solution",
}


def __getattr__(name: str) -> object:
    # Imported on demand, with types in __init__.pyi: `python -m` runs this file before __main__.py can turn
    # Ctrl-C into one line, and these modules bring MLX.
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)
