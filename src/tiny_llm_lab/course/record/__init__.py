"""What a learner has passed, and what follows from it."""
