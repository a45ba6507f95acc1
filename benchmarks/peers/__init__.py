"""Other engines on random weights of the same shape, for `bench --baselines`."""
