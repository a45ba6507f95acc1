"""The configuration of a checkpoint, and what is refused."""
