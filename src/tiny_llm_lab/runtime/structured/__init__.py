"""Answers of a given form: what a request may generate next, from a schema, an expression or a grammar."""
