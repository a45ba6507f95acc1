"""The `logprobs` of `/v1/completions`: four lists, an item for each token."""

from collections.abc import Sequence
from typing import Any

from tiny_llm_lab.runtime.models.text.tokenizer import CheckpointTokenizer
from tiny_llm_lab.types import EngineOutput, TokenLogprobs


class LegacyLogprobs:
    """Collects the tokens of one choice."""

    def __init__(self, tokenizer: CheckpointTokenizer) -> None:
        self._tokenizer = tokenizer
        self._offset = 0  # characters of all tokens so far
        self._clear()

    def add_prompt(self, token_ids: Sequence[int], output: EngineOutput) -> None:
        """Add the prompt's tokens; nothing comes before the first, so it has no probability."""
        self._add(token_ids[0], None)
        self.add([score for score in output.prompt_logprobs if score is not None])

    def add(self, scores: Sequence[TokenLogprobs]) -> None:
        """Add tokens of the answer."""
        for score in scores:
            self._add(score.token_id, score)

    def taken(self) -> dict[str, Any]:
        """What was added since the last call."""
        columns = {
            "tokens": self._tokens,
            "token_logprobs": self._logprobs,
            "top_logprobs": self._top,
            "text_offset": self._offsets,
        }
        self._clear()
        return columns

    def _add(self, token_id: int, score: TokenLogprobs | None) -> None:
        text = self._tokenizer.decode([token_id])
        self._tokens.append(text)
        self._offsets.append(self._offset)
        self._offset += len(text)
        self._logprobs.append(None if score is None else score.logprob)
        self._top.append(None if score is None else self._named(score))

    def _named(self, score: TokenLogprobs) -> dict[str, float]:
        # The token itself is there too, however unlikely.
        pairs = (*score.top, (score.token_id, score.logprob))
        return {self._tokenizer.decode([token_id]): logprob for token_id, logprob in pairs}

    def _clear(self) -> None:
        self._tokens: list[str] = []
        self._logprobs: list[float | None] = []
        self._top: list[dict[str, float] | None] = []
        self._offsets: list[int] = []
