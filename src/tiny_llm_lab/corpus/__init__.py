"""Seeded text generators: what the default model is trained on and measured with."""
