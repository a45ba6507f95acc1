"""The experiments, a file each."""
