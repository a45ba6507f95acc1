"""The pictures of requests: from wherever they may be, to what an engine takes."""

import asyncio
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

import httpx2

from tiny_llm_lab.runtime.pictures.contents import PartError, Source
from tiny_llm_lab.runtime.pictures.decoding import MAX_BYTES, data_of, require_size
from tiny_llm_lab.runtime.pictures.picture import Picture
from tiny_llm_lab.runtime.pictures.processor import PictureProcessor
from tiny_llm_lab.serving.openai_client import failure
from tiny_llm_lab.serving.server.settings import ChatSettings
from tiny_llm_lab.types import UserError
from tiny_llm_lab.types.computing.pictures import PictureConfig

_FETCH_S: Final = 10.0
_AT_ONCE: Final = 2  # pictures that are decoded; one of MAX_PIXELS takes a gigabyte
_FETCHED: Final = 8  # that are on their way or wait for that


class Media:
    """Reads the pictures of one model's requests, where its settings allow it."""

    def __init__(
        self,
        folder: Path,
        config: PictureConfig,
        settings: ChatSettings,
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        """`folder` is the checkpoint's. Raises UserError for one whose processor is unknown."""
        self.config, self._settings = config, settings
        self._processor = PictureProcessor(folder, config)
        self._decoders = ThreadPoolExecutor(_AT_ONCE, "picture")
        self._places = asyncio.Semaphore(_FETCHED)
        # Without cookies, which one client's request would leave for another's.
        is_open = bool(settings.allowed_media_domains)
        self._transport = httpx2.AsyncHTTPTransport() if is_open and transport is None else transport

    async def read(
        self, sources: Sequence[Source], most_tokens: int, check: Callable[[int], object]
    ) -> list[Picture]:
        """Returns pictures of at most `most_tokens` each.

        `check` is called with the number of all their tokens so far, before the last of them is decoded.
        Raises PartError for one that can't be had, and what `check` raises.
        """
        found: list[Picture] = []
        for source in sources:
            total = sum(each.num_tokens(self.config) for each in found)
            try:
                found.append(await self._picture(source, most_tokens, total, check))
            except UserError as error:
                raise PartError(source.place, f"{source.place} {error}") from None
        return found

    async def _picture(
        self, source: Source, most: int, total: int, check: Callable[[int], object]
    ) -> Picture:
        url = source.content if isinstance(source.content, str) else ""
        scheme, loop = url.partition(":")[0].lower(), asyncio.get_running_loop()

        def read(of: Callable[[], bytes]) -> Picture:
            return self._processor.read(of(), source.most_tokens(most), lambda new: check(total + new))

        match scheme:
            case "data":
                return await loop.run_in_executor(self._decoders, read, partial(data_of, url))
            case "file":
                own = partial(local_file, url, self._settings.allowed_local_media_path)
                return await loop.run_in_executor(self._decoders, read, own)
            case "http" | "https":
                async with self._places:
                    data = await fetched(url, self._settings.allowed_media_domains, self._transport)
                    return await loop.run_in_executor(self._decoders, read, lambda: data)
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


async def fetched(url: str, hosts: Collection[str], transport: httpx2.AsyncBaseTransport | None) -> bytes:
    """Returns what is at an address of one of `hosts`. Raises UserError for others, and for what fails."""
    if not hosts:
        raise UserError("is on the network: send a data URL, or allow its host by --allowed-media-domains")
    try:
        address = httpx2.URL(url)
    except (httpx2.InvalidURL, UnicodeError, ValueError) as error:
        raise UserError(f"is at no valid address ({error}): send a data URL") from None
    if address.host.lower() not in map(str.lower, hosts):
        raise UserError(f"is on {address.host}, which is not one of --allowed-media-domains: send a data URL")
    data, client = bytearray(), httpx2.AsyncClient(transport=transport, timeout=_FETCH_S)
    try:
        async with (
            asyncio.timeout(_FETCH_S),
            client.stream("GET", address, headers={"Accept-Encoding": "identity"}) as answer,
        ):
            if answer.status_code != 200:  # a redirect too: it may lead anywhere
                raise UserError(f"was not sent (HTTP {answer.status_code}): send the file's own address")
            async for piece in answer.aiter_raw():
                data += piece
                require_size(len(data))
    except (httpx2.HTTPError, TimeoutError, OSError) as error:
        raise UserError(f"was not sent ({failure(error)}): try again, or send a data URL") from None
    return bytes(data)
