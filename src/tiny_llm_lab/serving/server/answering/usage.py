"""How many tokens a request took, as OpenAI reports it."""

from dataclasses import dataclass, field
from typing import Any

from tiny_llm_lab.types import EngineOutput


@dataclass
class Usage:
    """Counts tokens while outputs pass; a prompt with `n` choices counts once."""

    num_prompt_tokens: int
    n: int = 1
    num_completion_tokens: int = 0
    _num_cached: dict[int, int] = field(default_factory=dict)  # by prompt

    def count(self, idx: int, output: EngineOutput) -> None:
        """Add what is new for choice `idx`; the choices of a prompt follow each other."""
        self.num_completion_tokens += len(output.token_ids)
        if idx % self.n == 0:
            self._num_cached[idx // self.n] = output.num_cached_tokens

    def as_dict(self) -> dict[str, Any]:
        """The `usage` of an answer."""
        return {
            "prompt_tokens": self.num_prompt_tokens,
            "completion_tokens": self.num_completion_tokens,
            "total_tokens": self.num_prompt_tokens + self.num_completion_tokens,
            "prompt_tokens_details": {"cached_tokens": sum(self._num_cached.values())},
        }
