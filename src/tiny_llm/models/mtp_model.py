"""A model that drafts for itself: in an engine, with its checkpoint's draft layer over its hidden states."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import mlx.core as mx

from tiny_llm_lab.types import Memory, RequestKvCache, Wanted
from tiny_llm_lab.types.computing.paged import PagedCache, StepLayout

from ..cache.paged_kv_cache import PagedKvCache
from .model import Qwen
from .mtp import MtpHead
from .weights import Weights


@dataclass(frozen=True)
class HiddenStep:
    """What a step computed: after the last norm, [T, E], for the rows of its layout."""

    hidden: mx.array
    layout: StepLayout


class MtpModel:
    """A `Qwen` in an engine, and the `MtpHead` of its checkpoint.

    It gives the logits of the model, to the bit where rows do not depend on their company.
    """

    def __init__(self, model: Qwen, weights: Weights) -> None:
        """`weights` are those of the checkpoint. Raises UserError like `MtpHead`."""
        self.model, self.config, self.ops = model, model.config, model.ops
        self._head = MtpHead(model, weights)
        self._steps: list[HiddenStep] = []

    def __call__(
        self,
        tokens: mx.array,
        offset: int | Sequence[int] = 0,
        cache: Sequence[Memory] | None = None,
        *,
        wanted: Wanted = Wanted(),
    ) -> mx.array:
        """As `Qwen` in an engine: tokens [T, 1] at positions `offset` [T] -> logits [rows, 1, V]."""
        assert cache is not None and wanted.rows is not None and not isinstance(offset, int)
        hidden = self.model.hidden(tokens, offset, cache)
        self._steps = [HiddenStep(hidden[:, 0], self._kv_cache.layout)]
        return self.model.logits(hidden[mx.array(list(wanted.rows), mx.int32)])

    def create_kv_cache(self) -> list[RequestKvCache]:
        """As `Qwen.create_kv_cache`."""
        return self.model.create_kv_cache()

    def create_paged_kv_cache(
        self, num_blocks: int, block_size: int = 16, kv_bits: int | None = None
    ) -> PagedCache:
        """The model's own. Sets pages, the draft layer's keys and values, in blocks with the same numbers."""
        one = replace(self.config, num_hidden_layers=1, hybrid=None)
        self.pages = PagedKvCache(one, num_blocks, block_size, self.model.norm.dtype, kv_bits)
        self._kv_cache = self.model.create_paged_kv_cache(num_blocks, block_size, kv_bits)
        self._steps = []
        return self._kv_cache

    @property
    def block_size(self) -> int:
        """Tokens of a block."""
        return self.pages.block_size

    def take_step(self) -> HiddenStep | None:
        """The hidden states of the last step, once; None if there was no step since."""
        return self._steps.pop() if self._steps else None

    def draft(
        self, hidden: mx.array, tokens: Sequence[int], layout: StepLayout, rows: Sequence[int]
    ) -> tuple[mx.array, mx.array]:
        """What the draft layer makes of hidden [T, E] and the token after each, T of them, for `rows`.

        Returns hidden states [rows, E], to go on from, and logits [rows, V] of the token after the next one.
        Stores keys and values of all rows.
        """
        (layer,) = self.pages.begin_step(layout)
        after, wanted = mx.array(list(tokens), mx.int32)[:, None], Wanted(rows=list(rows))
        out = self._head.forward(hidden[:, None], after, layout.positions, layer, wanted)
        logits = self.model.logits(out)
        mx.async_eval(out, logits, self.pages.pools)
        return out[:, 0], logits[:, 0]
