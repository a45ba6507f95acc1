"""What a model computes with: weights, caches, operators and shapes."""
