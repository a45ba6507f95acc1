"""An engine for a model whose output head gives vectors: a request is a prompt, its result the last row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias, cast

import mlx.core as mx

from tiny_llm_lab import types
from tiny_llm_lab.types.computing.pictures import NO_PICTURES, NoPictures

if TYPE_CHECKING:
    from tiny_llm_ref import Engine
    from tiny_llm_ref.engine.core import EngineCore

# Any token ends such a request, so it is in the engine until the prompt is computed.
_ONE_TOKEN = types.SamplingParams(max_tokens=1, ignore_eos=True)


class LastRow:
    """The `LogitsProcessor` of one request: keeps what the head gives for the last token of its prompt."""

    def __init__(self) -> None:
        self.row = mx.zeros((0,))

    def __call__(self, logits: mx.array, prompt: Sequence[int], answer: Sequence[int]) -> mx.array:
        """Returns zeros, because no token is asked for; made of the row, so that the step computes it."""
        self.row = logits.astype(mx.float32)
        return self.row * 0

    @property
    def vector(self) -> tuple[float, ...]:
        """The row, as numbers."""
        return tuple(cast(list[float], self.row.tolist()))


class PoolingEngine:
    """Serves requests with sampling.pooling on an `Engine`, and no others.

    Chunks, token budget, policies and prefix cache are the engine's. The last token of a prompt is always
    computed, whatever the prefix cache has.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._rows: dict[str, LastRow] = {}

    @property
    def core(self) -> EngineCore:
        return self._engine.core

    @property
    def has_requests(self) -> bool:
        return self._engine.has_requests

    def add(
        self,
        request_id: str,
        prompt: str | Sequence[int],
        sampling: types.SamplingParams = types.SamplingParams(),
        *,
        priority: int = 0,
        priority_class: types.PriorityClass = "interactive",
        arrival_s: float | None = None,
        prompt_idx: int | None = None,
        processors: Sequence[types.LogitsProcessor] = (),
        pictures: NoPictures = NO_PICTURES,
    ) -> None:
        """As `Engine.add`, without pictures. Raises UserError for a request that asks for text or draws."""
        if not sampling.pooling:
            raise types.UserError("this model gives vectors: ask /v1/embeddings or /v1/rerank")
        if processors or pictures.num_pictures or sampling != types.SamplingParams(pooling=True):
            raise types.UserError("pooling draws no token: leave out all other sampling parameters")
        last_row = LastRow()
        self._engine.add(
            request_id,
            prompt,
            _ONE_TOKEN,
            priority=priority,
            priority_class=priority_class,
            arrival_s=arrival_s,
            prompt_idx=prompt_idx,
            processors=(last_row,),
        )
        self._rows[request_id] = last_row

    def step(self) -> list[types.EngineOutput]:
        """As `Engine.step`; the completion of a request has its vector, and no token."""
        try:
            outputs = self._engine.step()
        except BaseException:
            self._rows.clear()  # the engine has dropped all requests
            raise
        return [self._pooled(output) for output in outputs]

    def abort(self, request_id: str) -> bool:
        self._rows.pop(request_id, None)
        return self._engine.abort(request_id)

    def generate(
        self,
        prompts: Sequence[str | Sequence[int] | types.Prompt],
        on_event: types.EventCallback | None = None,
    ) -> list[types.Completion]:
        raise types.UserError("this model gives vectors: add requests with pooling, or load it to generate")

    def release(self) -> None:
        self._rows.clear()
        self._engine.release()

    def _pooled(self, output: types.EngineOutput) -> types.EngineOutput:
        """The output of a request, which has one, at its end."""
        assert output.completion is not None
        vector = self._rows.pop(output.request_id).vector
        done = replace(output.completion, token_ids=(), text="", finish_reason="stop", vector=vector)
        events = [each for each in output.events if not isinstance(each, types.TokenEvent | types.DoneEvent)]
        return replace(
            output, token_ids=(), text="", completion=done, events=(*events, types.DoneEvent(done))
        )


AnyEngine: TypeAlias = "Engine | PoolingEngine"
