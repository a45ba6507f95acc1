"""Generated requests: when they arrive, how long they are, and what they say."""
