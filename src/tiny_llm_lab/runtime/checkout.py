"""The clone of the project that this package is in, if it is in one."""

from pathlib import Path

from tiny_llm_lab.types import UserError


def repository() -> Path:
    """The root of the clone. Raises UserError for an installed package, which has no course."""
    root = Path(__file__).resolve().parents[3]
    if not (root / "course.toml").exists():
        raise UserError(f"the course needs a clone, and {root} has no course.toml: clone the project")
    return root


def has_checkout() -> bool:
    """Whether the package is in a clone of the project, with its course, tests and book."""
    try:
        repository()
    except UserError:
        return False
    return True


def text_of(path: Path) -> str:
    """The text of a file; "" if it does not exist."""
    return path.read_text(encoding="utf-8") if path.is_file() else ""
