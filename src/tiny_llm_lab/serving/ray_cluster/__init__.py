"""Several machines: the server's application on Ray Serve."""
