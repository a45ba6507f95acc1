"""What the engine's steps cost, and what they do to those who wait: the experiments of `bench-engine`."""
