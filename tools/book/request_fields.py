"""The table of request fields in docs/fields.md."""

from collections.abc import Mapping
from typing import Final

from pydantic import BaseModel

from tiny_llm_lab.serving.server.routes.completions import CompletionRequest
from tiny_llm_lab.serving.server.schemas.chat import ChatRequest
from tiny_llm_lab.serving.server.schemas.messages import MessagesRequest
from tiny_llm_lab.serving.server.schemas.responses import ResponsesRequest
from tiny_llm_lab.serving.server.schemas.sampling import IGNORED, REFUSED
from tools.book.page import markdown_table

ANSWERING: Final[Mapping[str, type[BaseModel]]] = {
    "chat/completions": ChatRequest,
    "completions": CompletionRequest,
    "responses": ResponsesRequest,
    "messages": MessagesRequest,
}


def fields_table() -> str:
    """A row for each field: the routes that take it, and what it does on the others."""
    taken = {name for schema in ANSWERING.values() for name in schema.model_fields}
    rows = []
    for name in sorted({*taken, *IGNORED, *REFUSED}):
        routes = [route for route, schema in ANSWERING.items() if name in schema.model_fields]
        where = "all" if len(routes) == len(ANSWERING) else ", ".join(routes)
        others = f"ignored: {IGNORED[name]}" if name in IGNORED else f"refused: {REFUSED.get(name, '')}"
        rows.append([f"`{name}`", where, "" if where == "all" else others])
    return markdown_table(("field", "taken by", "elsewhere"), ["---"] * 3, rows)
