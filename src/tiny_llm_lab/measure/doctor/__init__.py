"""What `doctor` looks at, and how it says what it found."""
