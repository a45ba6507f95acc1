"""What people use who change the engine: its steps, kernels, other engines, faults, one-off measurements."""
