"""The engine of week 3: sequences, blocks, and a token budget for each step."""
