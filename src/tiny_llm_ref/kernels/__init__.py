"""Kernels: C++ and Metal sources, and the Python that launches the Metal kernels."""
