"""What the lines of a log of a server say, ours and vLLM's."""
