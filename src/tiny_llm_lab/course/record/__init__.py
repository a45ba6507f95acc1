"""What a learner has passed, and what to do next."""
