"""What the live page shows: recorded steps, sent to browsers as they happen."""
