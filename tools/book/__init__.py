"""Builds the book and checks it."""
