"""Caches: each key and value is computed once and stored."""
