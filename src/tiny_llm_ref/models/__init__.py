"""Models: the layers of a checkpoint, put together."""
