"""Pictures: what a prompt has of them, the tower that reads them, and how a model takes what it read."""
