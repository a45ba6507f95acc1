"""`compare`: the first call in which a solution computes something else than the reference."""
