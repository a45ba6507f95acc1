"""The real `openai` client in front of a model that says what it is told."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx2
import openai
from tests.helpers.chat_checkpoint import qwen_like_folder
from tests.helpers.picture_files import picture_config
from tests.helpers.scripted_engine import ScriptedEngine, scripted_server

from tiny_llm_lab.runtime.models import load_checkpoint
from tiny_llm_lab.serving.server.settings import ChatSettings

CALL = '<tool_call>\n{"name": "get", "arguments": {"city": "Köln"}}\n</tool_call>'
TOOL: Any = {
    "type": "function",
    "function": {"name": "get", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}
FLAT: Any = {"type": "function", **TOOL["function"]}
HI: Any = [{"role": "user", "content": "Hi"}]


@contextmanager
def scripted_client(
    folder: Path,
    script: str = "ok",
    template: str = "",
    chat: ChatSettings = ChatSettings(),
    sees: bool = False,
) -> Iterator[Any]:
    """Calls of the client, `refused`, `post` and `site` without it, the last `prompt` and the `engine`.

    `sees`: the model is said to read pictures.
    """
    ids = qwen_like_folder(folder, template=template)
    pictures = picture_config(ids["<|image_pad|>"]) if sees else None
    engine = ScriptedEngine()
    engine.script = script
    tokenizer: Any = load_checkpoint(folder).tokenizer
    with (
        scripted_server(folder, engine, chat, pictures) as url,
        openai.OpenAI(base_url=url, api_key="x", max_retries=0) as client,
        httpx2.Client(base_url=url, timeout=60) as http,
        httpx2.Client(base_url=url.removesuffix("/v1"), timeout=60) as site,
    ):
        yield SimpleNamespace(
            engine=engine,
            chat=client.chat.completions.create,
            respond=client.responses.create,
            post=http.post,
            refused=lambda path, **body: http.post(path, json=body),
            prompt=lambda: tokenizer.decode(engine.prompts[-1]),
            decode=tokenizer.decode,
            encode=tokenizer.encode,
            ids=ids,
            pictures=pictures,
            folder=folder,
            site=site,
            root=lambda path, **body: site.post(path, json=body),
            window=engine.config.max_model_len,
        )


def streamed(chunks: Any) -> SimpleNamespace:
    """All that a stream of one choice says."""
    found = SimpleNamespace(content="", reasoning="", calls=[], reason=None)
    for chunk in chunks:
        for choice in chunk.choices:
            found.content += choice.delta.content or ""
            found.reasoning += getattr(choice.delta, "reasoning_content", None) or ""
            for each in choice.delta.tool_calls or []:
                if each.id is not None:  # a new call
                    assert each.index == len(found.calls) and each.function.name
                    found.calls.append([each.function.name, ""])
                assert each.index == len(found.calls) - 1
                found.calls[-1][1] += each.function.arguments
            found.reason = choice.finish_reason or found.reason
    return found
