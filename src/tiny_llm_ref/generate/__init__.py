"""Generation in weeks 1 and 2: from a prompt to an answer."""
