"""Conversations: from messages to token ids, and from a model's text to reasoning, answer and tool calls."""
