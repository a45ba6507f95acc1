"""The pages for people: the live page at `/`, its files, and `/docs` without a script."""

from collections.abc import Iterator, Mapping
from html import escape
from pathlib import Path
from typing import Any, Final

from fastapi import APIRouter, HTTPException, Request
from fastapi.responses import FileResponse, HTMLResponse

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
    # We look the name up instead of opening it: it may lead elsewhere or be too long for the system.
    if kind is None or name not in (each.name for each in FOLDER.iterdir()):
        raise HTTPException(404, f"this page has no file {name}: / is the page")
    return FileResponse(FOLDER / name, media_type=kind, headers=HEADERS)


_STYLE = (
    ":root{color-scheme:light dark}body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;"
    "padding:0 1rem}table{border-collapse:collapse}td{padding:.1rem 1rem .1rem 0;vertical-align:top}"
)


@router.get("/docs")
async def docs(request: Request) -> HTMLResponse:
    """Every address with the fields of its body."""
    described = request.app.openapi()
    schemas = described.get("components", {}).get("schemas", {})
    parts = [
        part
        for path, methods in described["paths"].items()
        for method, operation in methods.items()
        for part in _operation(method, path, operation, schemas)
    ]
    return HTMLResponse(
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>tiny-llm: the API</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style><h1>The API</h1>'
        f'<p>For programs: <a href="openapi.json">openapi.json</a></p>{"".join(parts)}</html>'
    )


def _operation(
    method: str, path: str, operation: Mapping[str, Any], schemas: Mapping[str, Any]
) -> Iterator[str]:
    about = escape(operation.get("description", ""))
    yield f"<h2><code>{method.upper()} {escape(path)}</code></h2><p>{about}</p>"
    content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
    name = content.get("schema", {}).get("$ref", "").rpartition("/")[2]
    fields = schemas.get(name, {}).get("properties", {})
    if fields:
        yield "<table>"
        for field, schema in fields.items():
            yield f"<tr><td><code>{escape(field)}</code><td>{escape(_kind(schema))}"
        yield "</table>"


def _kind(schema: Mapping[str, Any]) -> str:
    if "anyOf" in schema:
        return " or ".join(_kind(each) for each in schema["anyOf"] if each.get("type") != "null")
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if schema.get("type") == "array":
        return f"list of {_kind(schema.get('items', {}))}"
    return str(schema.get("type", "anything"))
