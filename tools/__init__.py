"""What people use who change the course: `check`, the book, the known mistakes, the blind score."""
