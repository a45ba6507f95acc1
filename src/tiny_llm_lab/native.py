"""Kept for answers written before: `kernels` and what else a solution calls is in `runtime.native`."""

from tiny_llm_lab.runtime.native import can_run, kernels, set_num_threads, supports_packing

__all__ = ["can_run", "kernels", "set_num_threads", "supports_packing"]
