"""The pages for people: the live page at `/`, its files, and `/docs` without a script."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from fastapi import APIRouter, HTTPException, Request
from fastapi.responses import FileResponse, HTMLResponse
from jinja2 import Template

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
_DOCS: Final = Path(__file__).with_name("docs.html")

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
    # We look the name up instead of opening it: it may lead elsewhere or be too long for the system.
    if kind is None or name not in (each.name for each in FOLDER.iterdir()):
        raise HTTPException(404, f"this page has no file {name}: / is the page")
    return FileResponse(FOLDER / name, media_type=kind, headers=HEADERS)


@router.get("/docs")
async def docs(request: Request) -> HTMLResponse:
    """Every address with the fields of its body."""
    described = request.app.openapi()
    schemas = described.get("components", {}).get("schemas", {})

    def fields(operation: Mapping[str, Any]) -> Mapping[str, Any]:
        content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
        name = content.get("schema", {}).get("$ref", "").rpartition("/")[2]
        return schemas.get(name, {}).get("properties", {})

    page = Template(_DOCS.read_text("utf-8"), autoescape=True, trim_blocks=True)
    return HTMLResponse(page.render(paths=described["paths"], fields=fields, kind=_kind))


def _kind(schema: Mapping[str, Any]) -> str:
    if "anyOf" in schema:
        return " or ".join(_kind(each) for each in schema["anyOf"] if each.get("type") != "null")
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if schema.get("type") == "array":
        return f"list of {_kind(schema.get('items', {}))}"
    return str(schema.get("type", "anything"))
