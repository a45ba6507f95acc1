"""Everything a learner is given: loading, command line, benchmarks and the course's own tools."""

from tiny_llm_lab.models import load_checkpoint
from tiny_llm_lab.solution import load_solution

__all__ = ["load_checkpoint", "load_solution"]
