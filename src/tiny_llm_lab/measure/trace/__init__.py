"""Which request computes how many tokens in which step: recorded from a run of the engine, and drawn."""

from tiny_llm_lab.measure.trace.requests import TraceRequest
from tiny_llm_lab.measure.trace.run import decode_step_costs, max_trace_len, schedule_trace, trace_run

__all__ = ["TraceRequest", "decode_step_costs", "max_trace_len", "schedule_trace", "trace_run"]
