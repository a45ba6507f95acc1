"""What the engine did, as Prometheus metrics with vLLM's names, and as a line in the log."""
