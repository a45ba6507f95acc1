"""The starter: generated from the reference, filled up to a day, reset."""
