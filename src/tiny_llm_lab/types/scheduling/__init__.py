"""What a scheduler decides with: prompts, plans, steps, drafts and an engine's options."""
