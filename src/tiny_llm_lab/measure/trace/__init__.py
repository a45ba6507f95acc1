"""Which request computes how many tokens in which step: recorded from a run of the engine, and drawn."""

from tiny_llm_lab.measure.trace.run import max_trace_len, trace_run
from tiny_llm_lab.measure.trace.timeline import TraceRequest

__all__ = ["TraceRequest", "max_trace_len", "trace_run"]
