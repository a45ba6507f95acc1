"""The commands that run models."""
