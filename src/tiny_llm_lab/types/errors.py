"""The error for what a user can fix."""


class UserError(ValueError):
    """Something that the user can fix. The message is one line: what was wrong, and what to do about it."""
