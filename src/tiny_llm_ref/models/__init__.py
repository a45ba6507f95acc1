"""Models: whole networks, built from the layers and a checkpoint's weights."""
