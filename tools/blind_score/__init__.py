"""The share of errors nobody listed that the tests find."""
