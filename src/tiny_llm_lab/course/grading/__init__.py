"""Grades a solution with pytest: which tests run, and what their failures mean."""
