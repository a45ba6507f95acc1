"""The layer that drafts for a hybrid: a token ahead of the next one (multi-token prediction, 2412.19437)."""

from collections.abc import Sequence
from dataclasses import replace

import mlx.core as mx

from tiny_llm_lab.types import Memory, RequestKvCache, UserError, Wanted

from ..cache.paged_kv_cache import PagedKvCache
from ..layers.positional_encoding import RoPE
from .model import Qwen
from .weights import Weights, array, below


class MtpHead:
    """What a model has seen up to token t, and token t + 1, give the logits of token t + 2."""

    def __init__(self, model: Qwen, weights: Weights) -> None:
        """`weights` are those of the checkpoint of `model`. Under mtp. they have pre_fc_norm_embedding.weight
        and pre_fc_norm_hidden.weight [E], norm.weight [E], fc.weight [E, 2 E] and, under layers.0, a layer
        with attention, which `model.layer` builds. Embedding, head and operators are the model's.
        Sets config, which has one layer.

        Raises UserError if there is no draft layer.
        """
        if not (own := below("mtp", weights)):
            raise UserError(
                "this checkpoint has no draft layer (mtp.*): "
                "choose another --speculate, or a checkpoint with it"
            )
        self.model, self.ops, self.fc, config = model, model.ops, own["fc.weight"], model.config
        self.config = replace(config, num_hidden_layers=1, hybrid=None)  # of its keys and values
        self.embedding_norm, self.hidden_norm, self.norm = (
            array(own, f"{name}.weight") for name in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm")
        )
        positions = config.max_position_embeddings
        rope = RoPE(config.rotary_dims, positions, config.rope_theta, scaling=config.rope_scaling)
        self.layer = model.layer(below("layers.0", own), rope)

    def __call__(
        self,
        hidden: mx.array,
        tokens: mx.array,
        offsets: Sequence[int],
        cache: Memory | None = None,
        *,
        wanted: Wanted = Wanted(),
    ) -> tuple[mx.array, mx.array]:
        """hidden [B, L, E], as the model's last norm leaves it, and tokens [B, L] that follow.

        Returns [B, L, E] after the layer's last norm, from which a longer draft goes on, and logits
        [B, L, V], both of what is `wanted`. Row b is at the positions offsets[b], ... of this layer; `cache`
        stores its keys and values.
        """
        embedded = self.model.ops.embedding(tokens, self.model.embedding)
        both = mx.concatenate(
            [self._normed(embedded, self.embedding_norm), self._normed(hidden, self.hidden_norm)], axis=-1
        )
        (x,) = self.model.ops.linear(both, [self.fc])
        out = self._normed(self.layer(x, offsets, cache or self.create_cache(), wanted), self.norm)
        return out, self.model.logits(out)

    def create_cache(self) -> RequestKvCache:
        """An empty cache of one request."""
        return self.layer.mixer.create_cache()

    def create_paged_kv_cache(
        self, num_blocks: int, block_size: int = 16, kv_bits: int | None = None
    ) -> PagedKvCache:
        """Blocks for the keys and values of this layer."""
        return PagedKvCache(self.config, num_blocks, block_size, self.model.norm.dtype, kv_bits)

    def _normed(self, x: mx.array, weight: mx.array) -> mx.array:
        return self.model.ops.rms_norm(x, weight, self.model.config.rms_norm_eps)[1]
