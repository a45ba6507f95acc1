"""The layer that drafts for a hybrid: a token ahead of the next one (multi-token prediction, 2412.19437)."""

from collections.abc import Sequence

import mlx.core as mx

from tiny_llm_lab.types import NO_CACHE, KernelOps, RequestKvCache, UserError, Wanted, Weight

from ..cache.memory import Memory
from ..layers.basics import linear
from ..layers.layer_norm import RMSNorm
from ..layers.positional_encoding import RoPE
from .hybrid_parts import array, below
from .qwen import QwenModel, Weights


class MtpHead:
    """What a model has seen up to token t, and token t + 1, give the logits of token t + 2."""

    def __init__(self, model: QwenModel, weights: Weights) -> None:
        """`weights` have pre_fc_norm_embedding.weight, pre_fc_norm_hidden.weight and norm.weight [E],
        fc.weight [E, 2 E] and, under layers.0, a layer with gated attention. Embedding and head are those of
        `model`, whose `layer` builds the layer.
        """
        self.model, self.fc, config = model, weights["fc.weight"], model.config
        eps, size = config.rms_norm_eps, config.hidden_size
        self.embedding_norm, self.hidden_norm, self.norm = (
            RMSNorm(size, array(weights, f"{name}.weight"), eps)
            for name in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm")
        )
        positions = config.max_position_embeddings
        rope = RoPE(config.rotary_dims, positions, config.rope_theta, scaling=config.rope_scaling)
        self.layer = model.layer(below("layers.0", weights), rope)

    def __call__(
        self,
        hidden: mx.array,
        tokens: mx.array,
        offsets: Sequence[int],
        cache: Memory = NO_CACHE,
        *,
        wanted: Wanted = Wanted(),
    ) -> mx.array:
        """hidden [B, L, E], as the model's last norm leaves it, and tokens [B, L] that follow -> [B, L, V].

        Row b is at the positions offsets[b], ... of this layer; `cache` stores its keys and values. Only the
        logits of `wanted` are computed.
        """
        return self.logits(self.forward(hidden, tokens, offsets, cache, wanted))

    def forward(
        self, hidden: mx.array, tokens: mx.array, offsets: Sequence[int], cache: Memory, wanted: Wanted
    ) -> mx.array:
        """As `__call__` up to the layer's last norm: [B, L, E], from which a longer draft goes on."""
        embedded = self.normed(self.embedding_norm, self.embedded(tokens))
        both = mx.concatenate([embedded, self.normed(self.hidden_norm, hidden)], axis=-1)
        x = self.product(both, self.fc)
        mask = cache.attention_mask(tokens.shape[1])
        return self.normed(self.norm, self.layer(x, offsets, cache, mask=mask, wanted=wanted))

    def logits(self, hidden: mx.array) -> mx.array:
        """hidden [..., E] after a last norm -> [..., V]."""
        return self.product(hidden, self.model.head.weight)

    def create_cache(self) -> RequestKvCache:
        """An empty cache of one request."""
        return self.layer.mixer.create_cache()

    def embedded(self, tokens: mx.array) -> mx.array:
        """The model's embedding of tokens [B, L] -> [B, L, E]."""
        return self.model.embed_tokens(tokens)

    def normed(self, norm: RMSNorm, x: mx.array) -> mx.array:
        """The norm of x [..., E]."""
        return norm(x)

    def product(self, x: mx.array, w: Weight) -> mx.array:
        """x [..., K] times the transpose of w [N, K]."""
        return linear(x, w)


class OpsMtpHead(MtpHead):
    """An `MtpHead` on a model's operators."""

    def __init__(self, model: QwenModel, weights: Weights, ops: KernelOps) -> None:
        """As `MtpHead`; `ops` are those of `model`."""
        self.ops = ops
        super().__init__(model, weights)

    def embedded(self, tokens: mx.array) -> mx.array:
        """As in `MtpHead`, and so are the others."""
        return self.ops.embedding(tokens, self.model.embed_tokens.weight)

    def normed(self, norm: RMSNorm, x: mx.array) -> mx.array:
        return self.ops.rms_norm(x, norm.weight, norm.eps)[1]

    def product(self, x: mx.array, w: Weight) -> mx.array:
        return self.ops.linear(x, [w])[0]


def build_mtp_head(model: QwenModel, weights: Weights) -> MtpHead:
    """The draft layer of a checkpoint with these `weights`, for the `model` built from them.

    Raises UserError if there is none.
    """
    own = below("mtp", weights)
    if not own:
        raise UserError(
            "this checkpoint has no draft layer (mtp.*): choose another --speculate, or a checkpoint with it"
        )
    return MtpHead(model, own) if model.ops is None else OpsMtpHead(model, own, model.ops)
