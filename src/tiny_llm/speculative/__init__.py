"""Speculative decoding: draft tokens, verified in one forward pass."""
