"""What the pages of the book show besides text: formulas, figures, and their checks."""
