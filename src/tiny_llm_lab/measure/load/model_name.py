"""Asks a server which model it serves."""

import json

import httpx2

from tiny_llm_lab.measure.load.client import LoadOptions, error_of, open_client
from tiny_llm_lab.types import UserError


async def first_model(
    url: str,
    options: LoadOptions,
    model: str | None = None,
    transport: httpx2.AsyncBaseTransport | None = None,
) -> str:
    """`model`, or the first that the server at `url` lists; UserError, with its cure, for none.

    The server is asked in either case: one that is not there is told before any prompt is made.
    """
    try:
        async with (
            open_client(url, options, transport) as client,
            client.stream("GET", "/v1/models", timeout=10.0) as response,
        ):
            if model is not None:
                return model
            if response.status_code != 200:
                told = f"HTTP {response.status_code}: {await error_of(response)}"
                cure = "give --api-key" if response.status_code in (401, 403) else "name one with --model"
                raise UserError(f"{url} does not list its models ({told}): {cure}")
            return _first(url, await response.aread())
    except httpx2.HTTPError as error:
        told = " ".join(str(error).split()) or type(error).__name__
        raise UserError(
            f"no server answers at {url} ({told}): start one with ./pdmw run serve, or give its --base-url"
        ) from None


def _first(url: str, body: bytes) -> str:
    try:
        return str(json.loads(body)["data"][0]["id"])
    except (ValueError, LookupError, TypeError, RecursionError):
        raise UserError(f"{url} lists no model: name one with --model") from None
