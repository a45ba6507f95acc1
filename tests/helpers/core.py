"""The engine's core on its own: requests of token ids, and no engine around it."""

from collections.abc import Sequence
from typing import Any

from tests.helpers.phases import arrival_of
from tests.helpers.toy import ByteTokenizer

from tiny_llm_lab.types import EngineOptions, SamplingParams, SchedulerConfig


def make_core(llm: Any, model: Any, config: Any = None, **kwargs: Any) -> Any:
    """An `EngineCore` with an `add`, a `step` and a `core`, as an engine has them."""

    class Core(llm.EngineCore):  # type: ignore[misc]
        def add(self, name: str, tokens: Sequence[int], sampling: SamplingParams) -> Any:
            limit = min(self.scheduler.max_num_tokens, model.config.max_position_embeddings)
            answer = llm.Answer(ByteTokenizer(), arrival_of(tokens, sampling), tokens, limit)
            request = llm.RequestState(llm.TokenSequence(name, tokens), answer)
            self.admit(request)
            return request

        step = llm.EngineCore.advance
        core = property(lambda self: self)

    return Core(model, config or SchedulerConfig(), EngineOptions(**({"num_blocks": 256} | kwargs)))
