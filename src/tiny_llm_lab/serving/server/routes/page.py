"""`/` and `/page/`: the files of the live page."""

from pathlib import Path
from typing import Final

from fastapi import APIRouter, HTTPException
from fastapi.responses import FileResponse

FOLDER: Final = Path(__file__).parent.parent / "page"
TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
HEADERS: Final = {
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}

router = APIRouter(include_in_schema=False)


@router.get("/")
async def index() -> FileResponse:
    return _file("index.html")


@router.get("/page/{name}")
async def asset(name: str) -> FileResponse:
    """A file of the page; 404 for any other name."""
    return _file(name)


def _file(name: str) -> FileResponse:
    kind = TYPES.get(Path(name).suffix)
    # Looked up, not opened: a name may lead elsewhere, or be longer than the system takes.
    if kind is None or name not in (each.name for each in FOLDER.iterdir()):
        raise HTTPException(404, f"the page has no file {name}")
    return FileResponse(FOLDER / name, media_type=kind, headers=HEADERS)
