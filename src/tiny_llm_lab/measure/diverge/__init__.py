"""The same prompts under two configurations: where the answers part, and whether rounding explains it."""
