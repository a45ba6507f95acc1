"""`lab`: experiments on a running server, and what can be concluded from them."""
