"""Room 2 of 6, `runtime`: loads a checkpoint and a solution, and gives the model its operators.

It imports `types` only. Of this room a solution sees `native` alone.

- `models/`: a folder or a hub id becomes a configuration, weights and a tokenizer
- `native/`: compiles the C++ kernels, checks them once, and hands out operators
- `structured/`: grammars that decide which tokens may come next
- `baselines/`: mlx-lm with a solution's interface; `steps/`: engine steps to compute and time
- `console/`: the catalogue of commands, flags from dataclasses, tables, messages on stderr
- `solution.py` picks the package that runs; `memory.py`, `kv_memory.py`: what fits; `growing_pool.py`:
  blocks that get their memory when they are used; `memory_pressure.py`, `ranks.py`, `metrics.py`
"""
