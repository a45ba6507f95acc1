"""`lab`: experiments on a running server, and what they show."""
