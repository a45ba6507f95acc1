"""A model with its checkpoint's draft layer (multi-token prediction, arXiv 2412.19437, section 2.2)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

import mlx.core as mx

from tiny_llm_lab.types import RequestKvCache, Wanted, Weight
from tiny_llm_lab.types.computing.paged import PagedCache, StepLayout

from ..cache.memory import Memory
from ..cache.paged_attention import PagedLayer
from ..cache.paged_kv_cache import PagedKvCache
from ..layers.basics import linear
from ..layers.layer_norm import RMSNorm
from ..layers.positional_encoding import RoPE
from .qwen import QwenModel, Weights

_HEAD = "mtp."


@dataclass(frozen=True)
class HiddenStep:
    """What a step computed: after the last norm, [T, E], for the rows of its layout."""

    hidden: mx.array
    layout: StepLayout


class MtpModel:
    """A `QwenModel` in an engine, and one more layer that predicts the token after the next one.

    It gives the logits of the model, to the bit where rows do not depend on their company.
    """

    def __init__(self, model: QwenModel, weights: Weights) -> None:
        """`weights` has mtp.pre_fc_norm_embedding.weight, mtp.pre_fc_norm_hidden.weight and mtp.norm.weight
        [E], mtp.fc.weight [E, 2 E], and mtp.layers.0.*, a layer with attention. Sets steps: the hidden
        states of steps since the last call of `take_step`, at most one.
        """
        self.model, self.config, self.ops = model, model.config, model.ops
        own = {name.removeprefix(_HEAD): w for name, w in weights.items() if name.startswith(_HEAD)}
        self._norms = {
            name: RMSNorm(
                self.config.hidden_size, cast(mx.array, own[f"{name}.weight"]), self.config.rms_norm_eps
            )
            for name in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm")
        }
        self._fc = own["fc.weight"]
        config = self.config
        rope = RoPE(
            config.rotary_dims, config.max_position_embeddings, config.rope_theta, scaling=config.rope_scaling
        )
        prefix = "layers.0."
        block = {name.removeprefix(prefix): w for name, w in own.items() if name.startswith(prefix)}
        self._layer = model.layer(block, rope)
        self._steps: list[HiddenStep] = []

    def __call__(
        self,
        tokens: mx.array,
        offset: int | Sequence[int] = 0,
        cache: Sequence[Memory] | None = None,
        *,
        wanted: Wanted = Wanted(),
    ) -> mx.array:
        """As `QwenModel` in an engine: tokens [T, 1] at positions `offset` [T] -> logits [rows, 1, V]."""
        assert cache is not None and wanted.rows is not None and not isinstance(offset, int)
        x, layers = self._embedded(tokens), self.model.layers
        mask = cache[0].attention_mask(1)
        for layer, memory in zip(layers, cache, strict=True):
            x = layer(x, offset, memory, mask=mask)
        hidden = self._normed(x, self.model.norm)
        self._steps = [HiddenStep(hidden[:, 0], cast(PagedLayer, cache[0]).layout)]
        return self._logits(hidden[mx.array(list(wanted.rows), mx.int32)])

    def create_kv_cache(self) -> list[RequestKvCache]:
        """As `QwenModel.create_kv_cache`."""
        return self.model.create_kv_cache()

    def create_paged_kv_cache(
        self, num_blocks: int, block_size: int = 16, kv_bits: int | None = None
    ) -> PagedCache:
        """The model's own. The draft layer's keys and values are in blocks with the same numbers."""
        one = replace(self.config, num_hidden_layers=1, hybrid=None)
        self._pages = PagedKvCache(
            one, num_blocks, block_size, self.model.norm.weight.dtype, kv_bits, self.ops
        )
        self._steps = []
        return self.model.create_paged_kv_cache(num_blocks, block_size, kv_bits)

    @property
    def block_size(self) -> int:
        """Tokens of a block."""
        return self._pages.block_size

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
        embedded = self._normed(
            self._embedded(mx.array(list(tokens), mx.int32)[:, None]), self._norms["pre_fc_norm_embedding"]
        )
        before = self._normed(hidden[:, None], self._norms["pre_fc_norm_hidden"])
        x = self._linear(mx.concatenate([embedded, before], axis=-1), self._fc)
        (layer,) = self._pages.begin_step(layout)
        x = self._layer(x, layout.positions, layer, mask="causal", wanted=Wanted(rows=list(rows)))
        out = self._normed(x, self._norms["norm"])
        logits = self._logits(out)[:, 0]
        mx.async_eval(out, logits, self._pages.pools)
        return out[:, 0], logits

    def _embedded(self, tokens: mx.array) -> mx.array:
        embedding = self.model.embed_tokens
        return embedding(tokens) if self.ops is None else self.ops.embedding(tokens, embedding.weight)

    def _normed(self, x: mx.array, norm: RMSNorm) -> mx.array:
        return norm(x) if self.ops is None else self.ops.rms_norm(x, norm.weight, norm.eps)[1]

    def _linear(self, x: mx.array, w: Weight) -> mx.array:
        return linear(x, w) if self.ops is None else self.ops.linear(x, [w])[0]

    def _logits(self, hidden: mx.array) -> mx.array:
        head = self.model.head
        return head.as_linear(hidden) if self.ops is None else self.ops.linear(hidden, [head.weight])[0]
