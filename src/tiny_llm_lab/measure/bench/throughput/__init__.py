"""`bench`: tokens per second of a solution, with the machine's limits and other engines."""
