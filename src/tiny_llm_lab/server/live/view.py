"""What the pages of one server share."""

from dataclasses import dataclass, field
from typing import Any, Final

from tiny_llm_lab.server.served_model import ServedModel

from .controls import LiveControls
from .recorder import StepRecorder

LONG_PROMPT_TOKENS: Final = 3000
MIN_BUDGET: Final = 64
MAX_BUDGET: Final = 65_536


@dataclass(frozen=True)
class LiveView:
    """A recorder, and whether pages may change the engine."""

    recorder: StepRecorder
    has_controls: bool
    controls: LiveControls = field(default_factory=LiveControls)

    def hello(self, served: ServedModel) -> dict[str, Any]:
        """What a page has to know before the first step."""
        longest = served.config.max_model_len
        return {
            "model": served.names[0],
            "has_controls": self.has_controls,
            "max_model_len": longest,
            "min_budget": max(MIN_BUDGET, served.config.max_num_seqs),
            "long_prompt_tokens": min(LONG_PROMPT_TOKENS, longest * 3 // 4),
            "vocab_size": served.model.vocab_size,
            "num_blocks": served.num_blocks,
            "block_size": served.block_size,
        }
