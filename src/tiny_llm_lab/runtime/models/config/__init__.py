"""The configuration of a checkpoint, and what we refuse."""
