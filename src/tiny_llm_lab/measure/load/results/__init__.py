"""The results of a load run: figures, tables, plots, files."""
