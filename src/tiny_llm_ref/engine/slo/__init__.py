"""Latency: a token budget that keeps the inter-token latency below a limit."""
