"""Prefixes in a folder: blocks of keys and values, and a hybrid's states, that the next process finds."""
