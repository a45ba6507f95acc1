"""Formulas and figures in the pages of the book, and their checks."""
