"""Other engines behind the seam."""
