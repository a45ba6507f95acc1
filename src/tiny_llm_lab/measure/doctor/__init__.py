"""What `doctor` checks, and how it reports."""
