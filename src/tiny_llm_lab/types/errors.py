"""What a user can mend."""


class UserError(ValueError):
    """Something the user can mend: one line that says what happened and the cure."""
