"""A server as side B: it scores A's answers with OpenAI's completions, `echo` and `logprobs`."""

import os
from collections.abc import Sequence
from typing import Any, Final

import httpx2

from tiny_llm_lab.measure.diverge.compare import ServedStep
from tiny_llm_lab.serving.openai_client import base_of, failure, first_model, refusal, with_key
from tiny_llm_lab.types import UserError

_CURES: Final = ("start it, or correct --b-url", "name one with --b-model")
_TIMEOUT_S: Final = 300.0
_NUM_TOP: Final = 5  # what OpenAI's completions allow


class Server:
    """A server of completions; `transport` is for tests."""

    def __init__(self, url: str, model: str | None, transport: Any = None) -> None:
        """Raise UserError where no server answers, or lists no model."""
        self._headers = with_key(os.environ.get("OPENAI_API_KEY"))
        self._base, self._url = base_of(url), url
        self._transport = transport
        self._model = model or first_model(url, _CURES, self._headers, transport=transport).name

    def score(self, prompt: Sequence[int], answer: Sequence[int]) -> list[ServedStep]:
        """What the server says of each token of `answer` after `prompt`, in one forward pass of its own."""
        body = {
            "model": self._model, "prompt": [*prompt, *answer], "max_tokens": 1, "echo": True,
            "logprobs": _NUM_TOP, "temperature": 0,
        }  # fmt: skip
        said = self._post(body)
        try:
            logprobs = said["choices"][0]["logprobs"]
            span = slice(len(prompt), len(prompt) + len(answer))
            pairs = list(zip(logprobs["token_logprobs"][span], logprobs["top_logprobs"][span], strict=True))
            steps = [ServedStep(float(own), dict(top or {})) for own, top in pairs]
        except (LookupError, TypeError, ValueError):
            steps = []
        if len(steps) != len(answer):
            raise UserError(
                f"{self._url} gives no logprobs of a prompt: it must take echo and logprobs in completions"
            )
        return steps

    def _post(self, body: dict[str, Any]) -> Any:
        try:
            with httpx2.Client(
                headers=self._headers, transport=self._transport, timeout=_TIMEOUT_S
            ) as client:
                answer = client.post(f"{str(self._base).rstrip('/')}/v1/completions", json=body)
        except httpx2.HTTPError as error:
            raise UserError(f"{self._url} does not answer ({failure(error)}): {_CURES[0]}") from None
        if answer.status_code != 200:
            raise UserError(f"{self._url} refused to score ({refusal(answer.status_code, answer.content)})")
        try:
            return answer.json()
        except ValueError:
            return {}
