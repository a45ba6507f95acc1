"""Generation: from a prompt to an answer, week 1 and 2."""
