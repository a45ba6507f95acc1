"""Answers of an OpenAI-compatible server."""

import json
import os
from collections.abc import Generator, Mapping, Sequence
from typing import Any, Final

import httpx2

from tiny_llm_lab.types import SamplingParams, UserError

_DATA: Final = "data: "
# What OpenAI's API has no name for, and vLLM's does: left out where it says nothing.
_EXTRAS: Final = ("top_k", "min_p", "ignore_eos")
_CONNECT_S: Final = 10.0


class ServerAnswers:
    """The chat completions of the server at `url`, which ends in /v1 or stands before it."""

    def __init__(
        self, url: str, model: str | None = None, transport: httpx2.BaseTransport | None = None
    ) -> None:
        """`model` None is the first that the server lists. The key is that of OPENAI_API_KEY.

        Raises UserError for a server that does not answer.
        """
        key = os.environ.get("OPENAI_API_KEY")
        self._url = url
        try:
            self._client = httpx2.Client(
                base_url=f"{url.rstrip('/').removesuffix('/v1')}/v1/",
                headers={"Authorization": f"Bearer {key}"} if key else None,
                timeout=httpx2.Timeout(None, connect=_CONNECT_S),
                transport=transport,
            )
        except (httpx2.InvalidURL, ValueError) as error:
            raise UserError(f"--server {url!r} is no address ({error}): give http://HOST:PORT") from None
        self._model = model or self._first_model()

    def stream(
        self, messages: Sequence[Mapping[str, str]], sampling: SamplingParams
    ) -> Generator[str, None, None]:
        """Yield the answer to a conversation piece by piece; a loop that is left ends the request.

        Raises UserError for what the server refuses, and when it goes away.
        """
        plain = SamplingParams()
        body: dict[str, Any] = {
            "model": self._model,
            "messages": list(messages),
            "stream": True,
            "max_tokens": sampling.max_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "seed": sampling.seed,
            "stop": list(sampling.stop) or None,
        }
        body |= {
            name: value for name in _EXTRAS if (value := getattr(sampling, name)) != getattr(plain, name)
        }
        try:
            with self._client.stream("POST", "chat/completions", json=body) as answer:
                if answer.status_code != 200:
                    answer.read()
                    raise UserError(_refusal(answer))
                for line in answer.iter_lines():
                    if line.startswith(_DATA) and line != f"{_DATA}[DONE]":
                        yield _text(json.loads(line.removeprefix(_DATA)))
        except (httpx2.HTTPError, json.JSONDecodeError) as error:
            raise UserError(f"{self._url} stopped answering ({error}): look at its log") from None

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _first_model(self) -> str:
        try:
            answer = self._client.get("models", timeout=_CONNECT_S)
            if answer.status_code != 200:
                raise UserError(_refusal(answer))
            return str(answer.json()["data"][0]["id"])
        except httpx2.HTTPError as error:
            complaint = f"no server answers at {self._url} ({error})"
        except UserError as error:
            complaint = str(error)
        except (LookupError, TypeError, ValueError):
            complaint = f"{self._url}/v1/models lists no model"
        self._client.close()
        raise UserError(f"{complaint}: start a server there, or give another --server")


def _refusal(answer: httpx2.Response) -> str:
    try:
        return f"the server refuses ({answer.status_code}): {answer.json()['error']['message']}"
    except (LookupError, TypeError, ValueError):
        return f"the server refuses: {answer.status_code} {answer.reason_phrase}"


def _text(chunk: dict[str, Any]) -> str:
    if "error" in chunk:
        raise UserError(f"the server failed: {chunk['error'].get('message')}")
    choices = chunk.get("choices") or [{}]
    return choices[0].get("delta", {}).get("content") or ""
