"""Questions with pictures, in this process: what LLM, AsyncLLM and `chat` make of a conversation."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tiny_llm_lab.runtime.models.text.tokenizer import RenderedChat
from tiny_llm_lab.runtime.pictures.contents import Contents, placed
from tiny_llm_lab.runtime.pictures.picture import Picture
from tiny_llm_lab.serving.options.chat_template import Turns, as_chat
from tiny_llm_lab.types import Tokenizer, UserError
from tiny_llm_lab.types.computing.pictures import PictureConfig

if TYPE_CHECKING:
    from PIL.Image import Image

    from tiny_llm_lab.runtime.pictures.processor import PictureProcessor

_MOST_PICTURES: Final = 999


@dataclass(frozen=True)
class PictureChat:
    """Reads conversations for one model."""

    tokenizer: Tokenizer
    folder: Path  # of its checkpoint
    config: PictureConfig | None
    num_tokens: int  # the most of a request

    def prompt(
        self, messages: str | Turns, thinks: bool = False
    ) -> tuple[str | list[int], tuple[Picture, ...]]:
        """Returns a question or a conversation in the model's chat template, and its pictures.

        The parts of a content are {"type": "text", "text": ...}, {"type": "image", "image": PATH or PIL's},
        or those of OpenAI's API. Raises UserError for what can't be read.
        """
        if isinstance(messages, str):
            return as_chat(self.tokenizer, messages, thinks=thinks), ()
        contents = Contents(_MOST_PICTURES, self.config is not None)
        turns = [
            {**each, "content": contents.text(each["content"], f"messages[{number}].content")}
            for number, each in enumerate(messages)
        ]
        text = as_chat(self.tokenizer, turns, thinks=thinks, picture_mark=contents.mark)
        if self.config is None or not isinstance(text, RenderedChat) or not contents.sources:
            return text, ()
        pictures = self._processor.read_all(contents.sources, self.num_tokens // 2, _own)
        return placed(text, self.tokenizer.encode(text), pictures, self.config)

    @cached_property
    def _processor(self) -> PictureProcessor:
        from tiny_llm_lab.runtime.pictures.processor import PictureProcessor  # of the extra [serve]

        assert self.config is not None
        return PictureProcessor(self.folder, self.config)


def _own(content: object) -> bytes | Image:
    """A file of the user's, or a picture that is one already."""
    from PIL.Image import Image

    from tiny_llm_lab.runtime.pictures.decoding import data_of

    if isinstance(content, Image):
        return content
    if not isinstance(content, str | Path):
        raise UserError("is no path, data URL or picture of PIL: give one")
    return data_of(str(content)) if str(content).startswith("data:") else file_bytes(str(content))


def file_bytes(name: str) -> bytes:
    """Returns a file, or as much of it as tells that it is too large. Raises UserError."""
    from tiny_llm_lab.runtime.pictures.decoding import MAX_BYTES

    try:
        with Path(name.removeprefix("file://")).open("rb") as file:
            return file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"cannot be read from {name} ({reason}): save it, and name its path") from None
