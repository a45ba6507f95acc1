"""The engine behind an HTTP API, for clients that many people already have."""
