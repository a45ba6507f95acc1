"""What is given: six rooms, each of which imports only those below it.

    cli                  the program
    course    measure    exercises and grading; benchmarks, load, labs
    serving              LLM, AsyncLLM, the server
    runtime              models, kernels, solutions
    types                data and Protocols

The head of each room says what is in it. A program needs the five names below.
"""

import importlib

__all__ = ["LLM", "AsyncLLM", "SamplingParams", "load_checkpoint", "load_solution"]

_MODULES = {
    "AsyncLLM": "tiny_llm_lab.serving.async_llm",
    "LLM": "tiny_llm_lab.serving.llm",
    "SamplingParams": "tiny_llm_lab.types",
    "load_checkpoint": "tiny_llm_lab.runtime.models",
    "load_solution": "tiny_llm_lab.runtime.solution",
}


def __getattr__(name: str) -> object:
    # Imported on demand, with types in __init__.pyi: `python -m` runs this file before __main__.py can turn
    # Ctrl-C into one line, and these modules bring MLX.
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)
