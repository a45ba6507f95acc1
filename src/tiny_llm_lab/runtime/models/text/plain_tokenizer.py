"""The shipped model's tokenizer, without transformers, whose import takes longer than an answer."""

import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from tiny_llm_lab.runtime.models.config.model_config import read_json


class PlainTokenizer:
    """Tokens and chats as transformers makes them of the same folder.

    Only for a tokenizer.json that says all and a template of messages and tools: no documents.
    """

    def __init__(self, folder: Path) -> None:
        self.backend_tokenizer: Any = Tokenizer.from_file(str(folder / "tokenizer.json"))
        settings = read_json(folder / "tokenizer_config.json")
        self.eos_token_id: int | None = self.backend_tokenizer.token_to_id(settings["eos_token"])
        self.chat_template: str = settings["chat_template"]
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        # Jinja's own filter is for web pages: it would write < as \u003c.
        environment.filters["tojson"] = partial(json.dumps, ensure_ascii=False)
        self._template = environment.from_string(self.chat_template)

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Token ids of `text`."""
        return list(self.backend_tokenizer.encode(text, add_special_tokens=add_special_tokens).ids)

    def decode(self, token_ids: list[int], *, clean_up_tokenization_spaces: bool) -> str:
        """The text of `token_ids`, special tokens included; an id outside the vocabulary has no text."""
        return str(self.backend_tokenizer.decode(token_ids, skip_special_tokens=False))

    def apply_chat_template(
        self,
        conversation: Sequence[Mapping[str, Any]],
        tools: object = None,
        add_generation_prompt: bool = False,
        tokenize: bool = False,
        **variables: object,
    ) -> str:
        """`conversation` as text."""
        names = {"messages": conversation, "tools": tools, "add_generation_prompt": add_generation_prompt}
        return self._template.render(variables | names)
