"""From tokens to text while they arrive: the pieces, joined, are what decoding all of them at once gives."""

import codecs
import json
import re
from collections.abc import Callable
from functools import partial
from typing import Any


def byte_characters() -> list[str]:
    """The 256 bytes in order, each as its character: itself if printable, else one from U+0100 on."""
    printable = {*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAC + 1), *range(0xAE, 0xFF + 1)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


_BYTE_OF = {character: byte for byte, character in enumerate(byte_characters())}
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_UNDERLINE = "\N{LOWER ONE EIGHTH BLOCK}"  # SentencePiece's space


class ByteLevelDecoder:
    """Tokens are bytes; those that do not yet make a whole character are held back."""

    def __init__(self) -> None:
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: str) -> str:
        """The text that `token` makes final."""
        return self._utf8.decode(self.bytes_of(token))

    def finish(self) -> str:
        """The rest, when no token follows."""
        return self._utf8.decode(b"", final=True)

    def bytes_of(self, token: str) -> bytes:
        """What `token` stands for, wherever it is."""
        try:
            return bytes([_BYTE_OF[character] for character in token])
        except KeyError:  # an added token, written as it is
            return token.encode()


class SentencePieceDecoder:
    """Tokens are text with U+2581 for a space, or one byte each: <0xE4>."""

    def __init__(self, strips_space: bool) -> None:
        """`strips_space`: a space at the very beginning of the text is dropped."""
        self._drops_space = strips_space
        self._bytes = bytearray()

    def push(self, token: str) -> str:
        if match := _BYTE_TOKEN.fullmatch(token):
            # One invalid byte makes the whole run of them unreadable, so no part of it is final yet.
            self._bytes.append(int(match[1], 16))
            return ""
        return self._stripped(self._taken_bytes() + token.replace(_UNDERLINE, " "))

    def finish(self) -> str:
        return self._stripped(self._taken_bytes())

    def bytes_of(self, token: str) -> bytes:
        if match := _BYTE_TOKEN.fullmatch(token):
            return bytes([int(match[1], 16)])
        return token.replace(_UNDERLINE, " ").encode()

    def _taken_bytes(self) -> str:
        run, self._bytes = bytes(self._bytes), bytearray()
        try:
            return run.decode()
        except UnicodeDecodeError:
            return "\N{REPLACEMENT CHARACTER}" * len(run)

    def _stripped(self, text: str) -> str:
        if self._drops_space and text:
            self._drops_space = False
            return text.removeprefix(" ")
        return text


class MetaspaceDecoder:
    """Tokens are text with `replacement` for a space; the first token's are dropped."""

    def __init__(self, replacement: str, drops_first: bool) -> None:
        self._replacement, self._drops_first = replacement, drops_first

    def push(self, token: str) -> str:
        space = "" if self._drops_first else " "
        self._drops_first = False
        return token.replace(self._replacement, space)

    def finish(self) -> str:
        return ""

    def bytes_of(self, token: str) -> bytes:
        return token.replace(self._replacement, " ").encode()


# Turns the strings of a vocabulary into text, one at a time.
PieceDecoder = ByteLevelDecoder | SentencePieceDecoder | MetaspaceDecoder


class StreamDetokenizer:
    """The `Detokenizer` of one answer; a token takes the same time however many came before it."""

    def __init__(self, token_of: Callable[[int], str | None], decoder: PieceDecoder) -> None:
        """`token_of` gives the vocabulary's string of an id, None for an id outside it, which has no text."""
        self._token_of, self._decoder = token_of, decoder
        self._pieces: list[str] = []

    def add_token(self, token: int) -> None:
        if (text := self._token_of(token)) is not None:
            self._pieces.append(self._decoder.push(text))

    def finalize(self) -> None:
        self._pieces.append(self._decoder.finish())

    @property
    def last_segment(self) -> str:
        """The text that became final since this property was last read."""
        pieces, self._pieces = self._pieces, []
        return "".join(pieces)


def decoder_factory(state: bytes | None) -> Callable[[], PieceDecoder] | None:
    """Makes decoders equal to the `tokenizers` library's one of this `state`; None for an unknown kind."""
    settings: dict[str, Any] = json.loads(state) if state else {}
    kind = settings.get("type")
    if kind == "ByteLevel":
        return ByteLevelDecoder
    if kind == "Metaspace":
        drops_first = settings.get("prepend_scheme") != "never"
        return partial(MetaspaceDecoder, settings["replacement"], drops_first)
    for strips_space in (False, True):
        if settings == _sentence_piece(strips_space):
            return partial(SentencePieceDecoder, strips_space)
    return None


def _sentence_piece(strips_space: bool) -> dict[str, object]:
    strip = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
    steps: list[object] = [
        {"type": "Replace", "pattern": {"String": _UNDERLINE}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    return {"type": "Sequence", "decoders": [*steps, strip] if strips_space else steps}
