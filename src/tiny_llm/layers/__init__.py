"""Layers: the arithmetic of one transformer block."""
