"""Where a server is, and which model it serves."""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass

import httpx2

from tiny_llm_lab.serving.openai_client.errors import failure, refusal
from tiny_llm_lab.types import UserError

_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class ServedModel:
    """A model, and the most tokens of a request where the server tells them."""

    name: str
    max_model_len: int | None = None


def base_of(url: str) -> httpx2.URL:
    """The server's URL without /v1; UserError for one that is none."""
    try:
        base = httpx2.URL(url.rstrip("/").removesuffix("/v1"))
        if base.scheme not in ("http", "https") or not base.host:
            raise httpx2.InvalidURL("it needs http:// or https:// and a host")
    except (httpx2.InvalidURL, UnicodeError) as error:
        raise UserError(f"{url} is no URL ({error}): give one such as http://127.0.0.1:8000") from None
    return base


def with_key(key: str | None, headers: Mapping[str, str] | None = None) -> dict[str, str]:
    """`headers`, and the one of an API key."""
    return dict(headers or {}) | ({"Authorization": f"Bearer {key}"} if key else {})


def first_model(
    url: str,
    cures: tuple[str, str],
    headers: Mapping[str, str] | None = None,
    *,
    model: str | None = None,
    transport: httpx2.AsyncBaseTransport | None = None,
) -> ServedModel:
    """The first model that the server at `url` lists, or `model`.

    The server is asked in either case. Raises UserError, with the first of `cures` where no server answers,
    the second where it lists no model.
    """
    base, (start, name) = base_of(url), cures

    async def ask() -> tuple[int, bytes]:
        async with httpx2.AsyncClient(base_url=base, headers=headers, transport=transport) as client:
            answer = await client.get("/v1/models", timeout=_TIMEOUT_S)
            return answer.status_code, answer.content

    try:
        status, body = asyncio.run(ask())
    except httpx2.HTTPError as error:
        raise UserError(f"no server answers at {url} ({failure(error)}): {start}") from None
    if model is not None:
        return ServedModel(model)
    if status != 200:
        cure = "give its key in OPENAI_API_KEY" if status in (401, 403) else name
        raise UserError(f"{url} does not list its models ({refusal(status, body)}): {cure}")
    try:
        first = json.loads(body)["data"][0]
        return ServedModel(str(first["id"]), first.get("max_model_len"))
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        raise UserError(f"{url} lists no model: {name}") from None
