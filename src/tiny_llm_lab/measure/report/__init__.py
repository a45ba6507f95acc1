"""Everything the project can learn from one machine, in one run: the parts, and a page of them."""
