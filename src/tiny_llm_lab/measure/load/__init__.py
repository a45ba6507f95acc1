"""Load on an OpenAI-compatible server, and what its clients saw."""
