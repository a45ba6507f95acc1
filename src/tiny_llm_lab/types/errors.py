"""The error for what a user can fix, and checks that raise it."""

from collections.abc import Mapping


class UserError(ValueError):
    """Something that the user can fix. The message is one line: what was wrong, and what to do about it."""


def require(checks: Mapping[str, bool], place: str = "") -> None:
    """Raise UserError for the first complaint whose check does not hold, with `place` before it."""
    for complaint, holds in checks.items():
        if not holds:
            raise UserError(f"{place}{complaint}")
