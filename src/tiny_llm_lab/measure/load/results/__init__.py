"""What is made of the answers: figures, tables, plots, files."""
