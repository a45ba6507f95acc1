"""Which request computes how many tokens in which step: recorded from a run of the engine, and drawn."""

from .requests import TraceRequest
from .run import decode_step_costs, max_trace_len, schedule_trace, trace_run

__all__ = ["TraceRequest", "decode_step_costs", "max_trace_len", "schedule_trace", "trace_run"]
