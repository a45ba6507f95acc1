"""The recipe of the default model; train, evaluate, export and induction_init need PyTorch."""
