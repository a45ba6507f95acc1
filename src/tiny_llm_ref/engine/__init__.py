"""The engine of week 3: sequences, blocks, a token budget per step."""
