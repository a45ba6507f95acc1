"""Questions with pictures, in this process: what LLM, AsyncLLM and `chat` make of a conversation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tiny_llm_lab.runtime.models.text.tokenizer import CheckpointTokenizer, RenderedChat
from tiny_llm_lab.runtime.pictures.contents import Contents, placed
from tiny_llm_lab.runtime.pictures.picture import Picture
from tiny_llm_lab.runtime.structured.thoughts import Thoughts
from tiny_llm_lab.serving.options.chat_template import Turns, as_chat
from tiny_llm_lab.types import SamplingParams, Tokenizer, UserError
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
        self, messages: str | Turns, sampling: SamplingParams
    ) -> tuple[str | list[int], tuple[Picture, ...], SamplingParams]:
        """Returns a question or a conversation in the model's chat template, its pictures, and `sampling`.

        The latter says whether the answer begins with thoughts, which stop strings and a form leave alone.

        The parts of a content are {"type": "text", "text": ...}, {"type": "image", "image": PATH or PIL's},
        or those of OpenAI's API. Raises UserError for what can't be read.
        """
        contents = Contents(_MOST_PICTURES, self.config is not None)
        asked = messages if isinstance(messages, str) else _turns(messages, contents)
        thinks = bool(sampling.thinking_budget)
        text = as_chat(self.tokenizer, asked, thinks=thinks, picture_mark=contents.mark)
        if isinstance(text, RenderedChat) and sampling.is_thinking is None:
            text, sampling = self._begun(text, sampling)
        if self.config is None or not isinstance(text, RenderedChat) or not contents.sources:
            return text, (), sampling
        pictures = self._processor.read_all(contents.sources, self.num_tokens // 2, _own)
        return *placed(text, self.tokenizer.encode(text), pictures, self.config), sampling

    def _begun(self, text: RenderedChat, sampling: SamplingParams) -> tuple[RenderedChat, SamplingParams]:
        """Thoughts are begun for a form, which waits for thoughts that have begun."""
        own = self.tokenizer
        if sampling.structured_outputs is not None and isinstance(own, CheckpointTokenizer):
            can_wait, facts = Thoughts.of(own).end >= 0, own.template_facts
            if sampling.thinking_budget and can_wait and "enable_thinking" in facts.variables:
                text = text if text.is_thinking else text.extended(facts.thoughts[0])
            if not (can_wait and text.is_thinking):
                return text, sampling
        return text, replace(sampling, is_thinking=text.is_thinking)

    @cached_property
    def _processor(self) -> PictureProcessor:
        from tiny_llm_lab.runtime.pictures.processor import PictureProcessor  # of the extra [serve]

        assert self.config is not None
        return PictureProcessor(self.folder, self.config)


def _turns(messages: Sequence[object], contents: Contents) -> Turns:
    """A conversation with its contents as texts. Raises UserError for what is none."""
    turns = [each for each in messages if isinstance(each, Mapping) and {"role", "content"} <= each.keys()]
    if not turns or len(turns) < len(messages):
        raise UserError('a conversation must be a list of {"role": ..., "content": ...}, one or more')
    return [
        {**each, "content": contents.text(each["content"], f"messages[{number}].content")}
        for number, each in enumerate(turns)
    ]


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
