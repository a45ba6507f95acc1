"""A scheduler and a latency policy against others on fixed traffics, with a score card."""
