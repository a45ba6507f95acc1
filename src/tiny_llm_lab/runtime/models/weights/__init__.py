"""The weights of a checkpoint: files, names, shapes and dtypes."""
