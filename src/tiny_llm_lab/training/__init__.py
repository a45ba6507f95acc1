"""How the default model was made. Needs PyTorch and is not imported by anything that runs."""
