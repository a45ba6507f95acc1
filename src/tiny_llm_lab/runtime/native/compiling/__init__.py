"""Compiles the C++ kernels once for each instruction set and keeps them."""
