"""What accompanies a learner between two runs of the tests: where they stand, what is next, hints."""
