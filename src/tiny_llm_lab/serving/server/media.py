"""The files of pictures in requests, from wherever a server may read."""

import time
from collections.abc import Collection
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

import httpx2

from tiny_llm_lab.runtime.pictures.decoding import MAX_BYTES, data_of, require_size
from tiny_llm_lab.serving.openai_client import failure
from tiny_llm_lab.serving.server.settings import ChatSettings
from tiny_llm_lab.types import UserError

_FETCH_S: Final = 10.0


def file_at(address: object, settings: ChatSettings) -> bytes:
    """Returns the file at an address, on a thread. Raises UserError where `settings` don't allow it."""
    url = address if isinstance(address, str) else ""
    match url.partition(":")[0].lower():
        case "data":
            return data_of(url)
        case "file":
            return local_file(url, settings.allowed_local_media_path)
        case "http" | "https":
            return fetched(url, settings.allowed_media_domains)
    raise UserError("is not at a known address: send a data URL, such as data:image/png;base64,...")


def local_file(url: str, folder: str) -> bytes:
    """Returns the file at a file:// address below `folder`. Raises UserError for any other."""
    if not folder:
        raise UserError("is a local path: send a data URL, or serve its folder by --allowed-local-media-path")
    parts = urlsplit(url)
    try:
        path = Path(unquote(parts.path)).resolve(strict=True)  # links lead where they lead
        is_below = parts.netloc in ("", "localhost") and path.is_relative_to(Path(folder).resolve())
        if is_below and path.is_file():
            with path.open("rb") as file:
                return file.read(MAX_BYTES + 1)
    except (OSError, ValueError, RuntimeError):
        pass
    # The same for what is elsewhere and what is nowhere: nobody learns which files there are.
    raise UserError("is no file below --allowed-local-media-path that can be read: send a data URL")


def fetched(url: str, hosts: Collection[str], transport: httpx2.BaseTransport | None = None) -> bytes:
    """Returns what is at an address of one of `hosts`. Raises UserError for others, and for what fails."""
    if not hosts:
        raise UserError("is on the network: send a data URL, or allow its host by --allowed-media-domains")
    data, end_s = bytearray(), time.monotonic() + _FETCH_S
    try:
        address = httpx2.URL(url)
        if address.host.lower() not in map(str.lower, hosts):
            raise UserError(f"is on {address.host}, not one of --allowed-media-domains: send a data URL")
        with (
            httpx2.Client(transport=transport, timeout=_FETCH_S) as client,
            client.stream("GET", address, headers={"Accept-Encoding": "identity"}) as answer,
        ):
            if answer.status_code != 200:  # a redirect too: it may lead anywhere
                raise UserError(f"was not sent (HTTP {answer.status_code}): send the file's own address")
            for piece in answer.iter_raw():
                data += piece
                require_size(len(data))
                if time.monotonic() > end_s:
                    raise UserError(f"takes longer than {_FETCH_S:g} s: send a data URL")
    except (httpx2.HTTPError, httpx2.InvalidURL, UnicodeError, OSError) as error:
        raise UserError(f"was not sent ({failure(error)}): try again, or send a data URL") from None
    return bytes(data)
