"""Prompts on their way: why they are computed, and how far they are."""
