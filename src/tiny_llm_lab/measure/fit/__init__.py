"""Which models fit into a machine's memory, and what they can serve there."""
