"""Measurements that are kept in `results/` and seldom made again: a program each."""
