"""The contents of messages: text, and pictures in any API's form."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tiny_llm_lab.runtime.models.text.chat_form import PLACE_DIGITS
from tiny_llm_lab.runtime.models.text.tokenizer import RenderedChat, new_mark
from tiny_llm_lab.runtime.pictures.picture import Picture, expanded
from tiny_llm_lab.types import UserError
from tiny_llm_lab.types.computing.pictures import PictureConfig

LOW_TOKENS: Final = 256  # of a picture whose detail is low
_TEXT_PARTS: Final = ("text", "input_text", "output_text", "refusal")
_PICTURE_PARTS: Final = ("image_url", "input_image", "image")
_DETAILS: Final = ("auto", "low", "high", "original")


class PartError(UserError):
    """A part of a request that cannot be used; `place` is its name, such as messages[1].content[2]."""

    def __init__(self, place: str, message: str) -> None:
        super().__init__(message)
        self.place = place


@dataclass(frozen=True)
class Source:
    """A picture as a message gives it."""

    place: str
    content: object  # a URL; in this process also a path or one of PIL's images
    is_low: bool = False  # LOW_TOKENS are enough

    def most_tokens(self, most: int) -> int:
        """Returns the most tokens of this picture, where others have `most`."""
        return min(most, LOW_TOKENS) if self.is_low else most


class Contents:
    """Reads the contents of one request's messages as text, in which a mark stands for each picture."""

    def __init__(self, most: int = 0, has_tower: bool = False) -> None:
        """`most` pictures in a request, or none without a tower. Sets sources = []."""
        self._most, self._has_tower, self._mark = most, has_tower, new_mark()
        self.sources: list[Source] = []

    @property
    def mark(self) -> str:
        """What stands for a picture, with its number behind it; "" if there is none."""
        return self._mark if self.sources else ""

    def text(self, content: object, place: str) -> str:
        """Returns the text of a content: its parts, a line each. Raises PartError; `place` is its name."""
        if content is None or isinstance(content, str):
            return content or ""
        if not isinstance(content, list):
            raise PartError(place, f"{place} must be text or a list of parts")
        return self.joined([self.part(part, f"{place}[{number}]") for number, part in enumerate(content)])

    def joined(self, parts: Sequence[str]) -> str:
        """Returns parts as one text; a picture is within a line, as templates have it."""
        text = "\n".join(parts)
        return re.sub(rf"\n?({self._mark}\d{{{PLACE_DIGITS}}})\n?", r"\1", text) if self.sources else text

    def part(self, part: object, place: str) -> str:
        """Returns the text of one part, or the mark of its picture. Raises PartError for any other."""
        fields: Mapping[str, Any] = part if isinstance(part, Mapping) else {}
        kind = fields.get("type")
        text = fields.get("refusal" if kind == "refusal" else "text")
        if kind in _TEXT_PARTS and isinstance(text, str):
            return text
        if not self._has_tower:
            raise PartError(place, f"this model reads text only, and {place} is {kind!r}: send text")
        if kind not in _PICTURE_PARTS:
            raise PartError(place, f"{place} is {kind!r}: send text or a picture")
        if len(self.sources) == self._most:
            message = f"{place} is one picture too many: send {self._most}, or raise --limit-mm-per-prompt"
            raise PartError(place, message)
        self.sources.append(_source(fields, place))
        return f"{self._mark}{len(self.sources) - 1:0{PLACE_DIGITS}d}"


def _source(part: Mapping[str, Any], place: str) -> Source:
    if part.get("file_id"):
        raise PartError(f"{place}.file_id", f"{place}.file_id: this server keeps no files: send image_url")
    content: Any = part.get("image_url", part.get("image"))
    detail = part.get("detail")
    if isinstance(content, Mapping):
        content, detail = content.get("url"), content.get("detail", detail)
    if isinstance(given := part.get("source"), Mapping):  # Anthropic's
        data = f"data:{given.get('media_type')};base64,{given.get('data')}"
        content = {"base64": data, "url": given.get("url")}.get(str(given.get("type")))
    if detail is not None and detail not in _DETAILS:
        raise PartError(place, f"{place}.detail must be one of {', '.join(_DETAILS)}, not {detail!r}")
    if content is None:
        raise PartError(place, f"{place} has no picture that is known: send a data URL, or base64")
    return Source(place, content, detail == "low")


def placed(
    chat: RenderedChat, token_ids: Sequence[int], pictures: Sequence[Picture], config: PictureConfig
) -> tuple[list[int], tuple[Picture, ...]]:
    """Returns the tokens of `chat` with its pictures', and the pictures in the order of their places.

    Raises UserError for a template that leaves one out.
    """
    count = sum(token == config.token_id for token in token_ids)
    if sorted(chat.pictures) != [*range(len(pictures))] or count != len(pictures):
        message = f"the model's chat template has places for {count} of {len(pictures)} pictures"
        raise UserError(f"{message}: send them in a user's message")
    own = tuple(pictures[number] for number in chat.pictures)
    return expanded(token_ids, own, config), own
