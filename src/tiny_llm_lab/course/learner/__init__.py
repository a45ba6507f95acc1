"""Help for a learner between two test runs: progress, the next task, hints."""
