"""JSON schemas as llguidance can follow them: references resolved, the rest refused by name."""
