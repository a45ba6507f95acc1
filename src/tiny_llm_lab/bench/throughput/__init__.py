"""`bench`: tokens per second of a solution, beside the limits of the machine and other engines."""
