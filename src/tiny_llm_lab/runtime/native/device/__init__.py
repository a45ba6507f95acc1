"""Judges the kernels of a GPU before a model uses them."""
