"""What the flags of a command ask for: a model, an engine, sampling."""
