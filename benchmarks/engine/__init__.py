"""`bench-engine`: what an engine's steps, its scheduler and its schedule cost."""
