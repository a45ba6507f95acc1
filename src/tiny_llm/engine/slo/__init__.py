"""Latency: a token budget that keeps the gaps between tokens below a limit."""
