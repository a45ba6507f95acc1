"""Seeded notes and questions: the recall evaluation, and the long prompts of `batch-main`."""
