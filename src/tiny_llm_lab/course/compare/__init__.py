"""`compare`: where a solution first computes something else than the reference, call by call."""
