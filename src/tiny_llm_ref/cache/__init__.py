"""Caches: keys and values that are computed once."""
