"""Answers of a server, for `chat --server`: its HTTP client is in the extra [serve]."""

import json
import os
from collections.abc import Generator
from typing import Any, Final

import httpx2

from tiny_llm_lab.runtime.console.talk import show
from tiny_llm_lab.serving import openai_client
from tiny_llm_lab.serving.options.chat_template import Turns
from tiny_llm_lab.types import SamplingParams, UserError

# Fields that vLLM's API has and OpenAI's does not; left out if they are at the default.
_EXTRAS: Final = ("top_k", "min_p", "ignore_eos")
_CONNECT_S: Final = 10.0
_CURE: Final = "start a server there, or give another --server"


class ServerAnswers:
    """The chat completions of the server at `url`, with or without /v1 at its end."""

    def __init__(
        self, url: str, model: str | None = None, transport: httpx2.MockTransport | None = None
    ) -> None:
        """`model` None is the first that the server lists. The key comes from OPENAI_API_KEY.

        Raises UserError for a server that does not answer.
        """
        headers = openai_client.with_key(os.environ.get("OPENAI_API_KEY"))
        self._url = url
        self._model = (
            model or openai_client.first_model(url, (_CURE, _CURE), headers, transport=transport).name
        )
        timeout = httpx2.Timeout(None, connect=_CONNECT_S)
        self._client = httpx2.Client(
            base_url=openai_client.base_of(url), headers=headers, timeout=timeout, transport=transport
        )

    def stream(self, messages: Turns, sampling: SamplingParams) -> Generator[str, None, None]:
        """Yield the answer to a conversation piece by piece; a loop that is left ends the request.

        Raises UserError if the server refuses, or stops answering.
        """
        body: dict[str, Any] = {
            "model": self._model,
            "messages": list(messages),
            "stream": True,
            "stop": list(sampling.stop) or None,
        }
        body |= {name: getattr(sampling, name) for name in ("max_tokens", "temperature", "top_p", "seed")}
        own = {name: getattr(sampling, name) for name in _EXTRAS}
        body |= {name: value for name, value in own.items() if value != getattr(SamplingParams, name)}
        try:
            with self._client.stream("POST", "/v1/chat/completions", json=body) as answer:
                if answer.status_code != 200:
                    raise UserError(
                        f"the server refused this: {openai_client.refusal(answer.status_code, answer.read())}"
                    )
                yield from map(_text, openai_client.events_of(answer.iter_bytes(), _show_progress))
        except (httpx2.HTTPError, json.JSONDecodeError) as error:
            raise UserError(f"{self._url} stopped answering ({error}): look at its log") from None

    def close(self) -> None:
        """Close the connections."""
        self._client.close()


def _show_progress(comment: str) -> None:
    if comment.startswith("prompt: "):  # our servers' own
        show(comment)


def _text(data: bytes) -> str:
    chunk = json.loads(data)
    if "error" in chunk:
        raise UserError(f"the server failed: {openai_client.error_message(chunk['error'])}")
    choices = chunk.get("choices") or [{}]
    return choices[0].get("delta", {}).get("content") or ""
