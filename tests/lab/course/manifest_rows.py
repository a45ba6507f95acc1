"""course.toml of a course for tests, a row for each day and task."""


def course_toml(*rows: str) -> str:
    """Tables of rows such as `day: id = "1.1"; title = "One"`."""
    parts = (row.partition(": ") for row in rows)
    return "".join(f"[[{table}]]\n{keys.replace('; ', chr(10))}\n" for table, _, keys in parts)
