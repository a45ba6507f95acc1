"""Several models behind one address, loaded when they are asked for."""
