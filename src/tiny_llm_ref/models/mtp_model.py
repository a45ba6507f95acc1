"""A model that drafts for itself: in an engine, with its checkpoint's draft layer over its hidden states."""

from collections.abc import Sequence
from itertools import accumulate

import mlx.core as mx

from tiny_llm_lab.types import Memory, RequestKvCache, Wanted
from tiny_llm_lab.types.computing.paged import PagedCache, Slice

from ..cache.step_layout import StepLayout
from .model import Qwen
from .mtp import MtpHead
from .weights import Weights


class MtpModel:
    """A `Qwen` in an engine, and the `MtpHead` of its checkpoint.

    It gives the logits of the model, to the bit where rows do not depend on their company.
    """

    def __init__(self, model: Qwen, weights: Weights) -> None:
        """`weights` are those of the checkpoint. Sets model, config, ops and head, the `MtpHead`.

        Raises UserError like `MtpHead`.
        """
        self.model, self.config, self.ops = model, model.config, model.ops
        self.head, self.logits = MtpHead(model, weights), model.logits
        self._steps: list[tuple[mx.array, StepLayout]] = []

    def __call__(
        self,
        tokens: mx.array,
        offset: int | Sequence[int] = 0,
        cache: Sequence[Memory] | None = None,
        *,
        wanted: Wanted = Wanted(),
    ) -> mx.array:
        """As `Qwen` in an engine: tokens [T, 1] at positions `offset` [T] -> logits [rows, 1, V]."""
        assert not isinstance(offset, int)
        return self.logits(self.hidden(tokens, offset, cache, wanted=wanted))

    def hidden(
        self,
        tokens: mx.array,
        offsets: Sequence[int],
        cache: Sequence[Memory] | None = None,
        *,
        wanted: Wanted = Wanted(),
    ) -> mx.array:
        """As `Qwen.hidden` in an engine: [rows, 1, E]."""
        assert wanted.rows is not None
        hidden = self.model.hidden(tokens, offsets, cache)
        del self._steps[:-1]  # besides this step one may be in flight
        self._steps.append((hidden[:, 0], self._kv_cache.layout))
        return hidden[mx.array(list(wanted.rows), mx.int32)]

    def create_kv_cache(self) -> list[RequestKvCache]:
        """As `Qwen.create_kv_cache`."""
        return self.model.create_kv_cache()

    def create_paged_kv_cache(
        self, num_blocks: int, block_size: int = 16, kv_bits: int | None = None
    ) -> PagedCache:
        """The model's own; no step has been computed."""
        self._kv_cache = self.model.create_paged_kv_cache(num_blocks, block_size, kv_bits)
        self._steps = []
        return self._kv_cache

    def take_step(self, slices: Sequence[Slice]) -> tuple[mx.array, list[int]]:
        """Of the oldest step of these slices, once: after the last norm [T, E], and each request's first row,
        and T. The engine dropped the steps before it while they were in flight, as all their requests ended.
        """
        starts = [0, *accumulate(at.num_new for at in slices)]
        lengths = [at.num_computed + at.num_new for at in slices]
        while True:
            hidden, layout = self._steps.pop(0)
            if (layout.query_starts, layout.lengths) == (starts, lengths):
                return hidden, starts
