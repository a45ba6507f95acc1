"""The extras of the wheel: which one brings a library that a command needs."""

from typing import Final

from tiny_llm_lab.types import UserError

_EXTRAS: Final = {
    "serve": ("fastapi", "starlette", "pydantic", "uvicorn", "httptools", "prometheus_client", "httpx2"),
    "measure": ("matplotlib",),
    "course": ("pytest", "xdist", "pytest_timeout", "hypothesis", "watchfiles"),
    "ray": ("ray", "pyarrow"),
}


def missing_extra(error: ModuleNotFoundError) -> UserError | None:
    """What to say where the library of an extra is not installed; None for any other module."""
    library = (error.name or "").partition(".")[0]
    extra = next((name for name, libraries in _EXTRAS.items() if library in libraries), None)
    if extra is None:
        return None
    return UserError(f"{library} is not installed: run pip install 'WHEEL[{extra}]', with its file name")
