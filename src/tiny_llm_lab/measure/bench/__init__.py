"""Benchmarks: workloads, measurement, plots."""
