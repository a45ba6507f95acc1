"""The course tools: starter, tests, checks and book."""
