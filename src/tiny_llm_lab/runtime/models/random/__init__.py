"""Checkpoints with random weights, for tests and benchmarks."""
