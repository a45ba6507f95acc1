"""From the engine's outputs to the bytes of an answer."""
