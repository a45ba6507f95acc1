"""Room 4 of 6, `measure`: benchmarks, load, experiments and reports.

It imports `serving`, `runtime` and `types`, and nothing of the course.

- `bench/`: tokens per second, latencies across prefill_step; steps and kernels: `benchmarks/` of the clone
- `traffic/`: arrivals, lengths and texts of requests
- `load/`: load on an OpenAI-compatible server, and what its clients saw
- `labs/`: `lab`, experiments on running servers and their verdicts
- `simulate/`: the scheduler under a virtual clock; `trace/`: who computed what in which step
- `doctor/` and `report/`: this machine, for its owner and for an issue
- `corpus/`: seeded notes, questions and the known answer
"""
