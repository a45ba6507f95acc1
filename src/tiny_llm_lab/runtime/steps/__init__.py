"""Steps of an engine: what they consist of, computing them again and again, and timing them."""
