"""Requests that are to be generated: when they arrive, how long they are, and what they say."""
