"""The operators that models run on: one interface, several sets."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import mlx.core as mx

from tiny_llm_lab.types.computing.draw import DrawRow
from tiny_llm_lab.types.computing.hybrid import DeltaWeights
from tiny_llm_lab.types.computing.layer_stack import LayerStack
from tiny_llm_lab.types.computing.model_config import ModelConfig
from tiny_llm_lab.types.computing.weight import QuantizedWeights, Weight

Offsets = Sequence[int]  # how many tokens each row of the batch stores before the new tokens


class Rotary(Protocol):
    """What an operator needs to know about rotary positions."""

    seq_len: int  # positions are 0 to seq_len - 1
    traditional: bool  # pairs are neighbours; if False, dimensions i and i + D / 2
    base: float | None  # pair i turns by base^(-2i / D) radians a position; None = by 1 / periods[i]
    magnitude: float  # a factor of the result; 1 unless a scaling changes it

    @property
    def periods(self) -> mx.array:
        """How many positions each pair takes to turn by a radian: [D / 2] float32."""

    def __call__(self, x: mx.array, offsets: Sequence[int]) -> mx.array:
        """Returns x [B, L, H, D] rotated; the first token of row b is at position offsets[b]."""

    def tables(self, num_positions: int) -> tuple[mx.array, mx.array]:
        """Returns cosines and sines [P, D / 2] float32 times `magnitude`, P >= num_positions."""


@dataclass(frozen=True)
class MixtureWeights:
    """What a layer with experts has beside their matrices."""

    router: Weight  # [N, E]
    per_token: int  # experts that a token uses
    is_normed: bool  # whether their shares are divided by their sum
    shared: list[Weight]  # of the expert of all tokens: gate, up [S, E], down [E, S], its own gate [1, E]


@dataclass(frozen=True)
class LayerWeights:
    """The parameters of one transformer layer, E wide, with H * D query numbers and G * D key numbers."""

    eps: float  # of all norms
    norm: mx.array  # [E], before attention
    # [H * D, E], [G * D, E], [G * D, E]; of gated attention the first is [2 * H * D, E], and of a gated delta
    # net they are in_proj_qkv, in_proj_z, in_proj_a and in_proj_b.
    qkv: list[Weight]
    biases: list[mx.array | None]  # of qkv, None in Qwen3
    query_norm: mx.array | None  # [D], None in Qwen2
    key_norm: mx.array | None  # [D], None in Qwen2
    out: Weight  # [E, H * D]
    mlp_norm: mx.array  # [E], before the feed-forward
    gate: Weight  # [I, E], or [N, I, E] for N experts
    up: Weight  # like gate
    down: Weight  # [E, I], or [N, E, I] for N experts
    mixture: MixtureWeights | None = None  # None: gate, up and down are one network
    net: DeltaWeights | None = None  # of a gated delta net, between its projections; None: attention
    has_gate: bool = False  # gated attention: qkv[0] has a query and its gate for each head

    @classmethod
    def of(cls, config: ModelConfig, weights: Mapping[str, Weight]) -> "LayerWeights":
        """From a layer's parameters, named as in a checkpoint, such as self_attn.q_proj.weight."""

        def vector(name: str) -> mx.array | None:
            result = weights.get(name)
            assert not isinstance(result, QuantizedWeights), f"{name} is a vector"
            return result

        if "linear_attn.out_proj.weight" in weights:
            inputs = [f"linear_attn.in_proj_{part}" for part in ("qkv", "z", "a", "b")]
            out = "linear_attn.out_proj"
        else:
            inputs, out = [f"self_attn.{part}_proj" for part in "qkv"], "self_attn.o_proj"
        norm, mlp_norm = vector("input_layernorm.weight"), vector("post_attention_layernorm.weight")
        assert norm is not None and mlp_norm is not None
        mixture = _mixture(config, weights)
        mlp = "mlp" if mixture is None else "mlp.switch_mlp"
        return cls(
            eps=config.rms_norm_eps,
            norm=norm,
            qkv=[weights[f"{name}.weight"] for name in inputs],
            biases=[vector(f"{name}.bias") for name in inputs],
            query_norm=vector("self_attn.q_norm.weight"),
            key_norm=vector("self_attn.k_norm.weight"),
            out=weights[f"{out}.weight"],
            mlp_norm=mlp_norm,
            gate=weights[f"{mlp}.gate_proj.weight"],
            up=weights[f"{mlp}.up_proj.weight"],
            down=weights[f"{mlp}.down_proj.weight"],
            mixture=mixture,
        )


def _mixture(config: ModelConfig, weights: Mapping[str, Weight]) -> MixtureWeights | None:
    if "mlp.gate.weight" not in weights:
        return None
    names = [f"shared_expert.{part}_proj" for part in ("gate", "up", "down")] + ["shared_expert_gate"]
    has_shared = config.shared_expert_intermediate_size > 0
    return MixtureWeights(
        router=weights["mlp.gate.weight"],
        per_token=config.num_experts_per_tok,
        is_normed=config.norm_topk_prob,
        shared=[weights[f"mlp.{name}.weight"] for name in names] if has_shared else [],
    )


class StoringOps(Protocol):
    """The operators that write keys and values."""

    def append(self, stored: mx.array, added: mx.array, offsets: Offsets) -> mx.array:
        """Write added [B, G, L, D] into the first B <= R rows of stored [R, G, S, D], starting at `offsets`.

        Returns the result. Writes into the memory of `stored` if nothing else holds that array, otherwise
        into a copy.
        """

    def grow(self, stored: mx.array, rows: int, room: int, used: Sequence[int]) -> mx.array:
        """Returns storage [rows, G, room, D] with the first used[b] tokens of row b of stored [B, G, S, D].

        The rest may be anything, because attention reads no token after a row's last.
        """

    def append_rows(self, stored: mx.array, added: mx.array, slots: mx.array) -> mx.array:
        """Write row t of added [T, G, 1, D] into slot slots[t] (int32) of stored [blocks, G, block size, D].

        Returns the pool. A pool of scales and its rows have no D axis. Writes into the memory of `stored`,
        which you must not use any more.
        """

    def quantize_rows(self, x: mx.array) -> Sequence[mx.array]:
        """Returns rows x [..., D] as int8 [..., D], and their scales [...] in float32."""


class KvStorage(StoringOps, Protocol):
    """What writes and grows the storage of keys and values: operators, or plain arrays."""

    has_free_rows: bool  # a row of storage costs nothing until something is written to it


class CommonOps(StoringOps, Protocol):
    """The operators that models call and that a package's C++ has with the same signatures.

    Floats are float32, float16 or bfloat16, and a result has the dtype of the first array unless stated.
    Operators are lazy, like MLX's own. Shapes use the legend of the course: B batch, L new tokens, S stored
    tokens, T packed rows, H heads, G kv heads, D head dimension, E hidden size, I size of the MLP, N experts,
    V vocabulary.
    """

    def embedding(self, tokens: mx.array, weight: Weight) -> mx.array:
        """Rows of weight [V, E] for integer tokens [...] -> [..., E], in the dtype of weight or scales."""

    def linear(
        self, x: mx.array, weights: Sequence[Weight], biases: Sequence[mx.array | None] = ()
    ) -> list[mx.array]:
        """Returns x [..., K] times the transpose of each weight [N, K], plus its bias [N]: [..., N] for each.

        `biases` is empty, or has an entry for every weight.
        """

    def rms_norm(
        self, x: mx.array, weight: mx.array, eps: float, delta: mx.array | None = None
    ) -> tuple[mx.array, mx.array]:
        """Returns x + delta (x if `delta` is None) [..., E], and its norm times weight [E]."""

    def paged_attention(
        self,
        query: mx.array,
        key: mx.array,
        value: mx.array,
        starts: Sequence[int],
        lengths: Sequence[int],
        tables: mx.array,
        scale: float,
        kv_scales: tuple[mx.array, mx.array] | None = None,
    ) -> mx.array:
        """query [T, H, 1, D] over pools key, value [blocks, G, block size, D] -> [T, 1, H * D], causal.

        Request r has rows starts[r] to starts[r + 1] - 1, lengths[r] stored tokens and block table tables[r]
        (int32). Pools of int8 come with `kv_scales` [blocks, G, block size] in float32.
        """

    def swiglu(self, gate: mx.array, up: mx.array) -> mx.array:
        """Returns silu(gate) * up, elementwise on [..., I]."""

    def sigmoid_gate(self, x: mx.array, gate: mx.array) -> mx.array:
        """Returns x * sigmoid(gate), elementwise on [..., I]; gate may be [..., 1]."""

    def route(self, scores: mx.array, per_token: int, is_normed: bool) -> Sequence[mx.array]:
        """Returns the K = `per_token` experts of each row of scores [T, N], and their shares: [T, K] each.

        uint32 and float32, as `layers.moe.route` of a package says.
        """

    def expert_mlp(
        self, x: mx.array, experts: mx.array, shares: mx.array, gate: Weight, up: Weight, down: Weight
    ) -> mx.array:
        """Returns the sum of the SwiGLU MLPs of each token's K experts, times their shares: [T, E].

        x is [T, E], experts [T, K] uint32, shares [T, K] float32; gate and up are [N, I, E], down [N, E, I].
        """

    def argmax(self, x: mx.array) -> mx.array:
        """Returns the index of each row's largest number, the first of equals: [..., V] -> [...] uint32."""

    def score(self, logits: mx.array, tokens: mx.array, num_top: int) -> Sequence[mx.array]:
        """Returns logprobs [n] of `tokens` [n] uint32, and the `num_top` likeliest tokens of each row.

        These are tokens [n, k] uint32 and their logprobs [n, k], the likeliest first and of equals the lower
        token; k is `num_top`, or V if that is less. A logprob is the natural logarithm of the softmax of
        `logits` [n, V], in float32.
        """


class KernelOps(CommonOps, KvStorage, Protocol):
    """The operators of a model: a package's C++ or its functions on arrays, or MLX's fused operators."""

    name: str  # of the set, as in TINY_LLM_KERNELS: "cpp", "mlx" or "off"
    starts_early: bool  # whether operators should start while Python still plans later operators

    def draw(self, logits: mx.array, rows: Sequence[DrawRow]) -> mx.array:
        """Draw a token from each row of logits [n, V], changed as rows[i] says -> [n] uint32.

        A row is drawn as if it were alone. With a temperature of 0 it is the likeliest token, of equals the
        lowest. Otherwise the scores are the logits divided by the temperature, and these are kept: with top_k
        every score that reaches the k-th highest; of these, with top_p, every score that reaches the highest
        threshold at which the kept probability is at least top_p; of these, with min_p, every score whose
        probability is at least min_p times the highest. The token is the one with the largest sum of score
        and `noise.gumbel` of the row's key.
        """

    def qkv_rope(
        self, x: mx.array, w: LayerWeights, rope: Rotary, offsets: Offsets, kept: int
    ) -> Sequence[mx.array]:
        """Returns rotated queries [B, H, kept, D] of the last `kept` tokens, keys and values [B, G, L, D].

        x [B, L, E] is normalised, projected by w.qkv, normalised per head by w.query_norm and w.key_norm if
        there are any, and rotated with positions that start at `offsets`. Raises ValueError for a position
        that `rope` does not have.
        """

    def norm_rope(
        self, x: mx.array, weight: mx.array, eps: float, rope: Rotary, offsets: Offsets
    ) -> mx.array:
        """Heads x [B, L, H, D] -> [B, H, L, D], normalised by weight [D], then rotated from `offsets` on.

        If `rope` turns fewer than D / 2 pairs, they are in the first dimensions; the others stay as they are.
        """

    def attention(
        self, query: mx.array, key: mx.array, value: mx.array, lengths: Offsets, scale: float
    ) -> mx.array:
        """query [B, H, L, D] over key, value [B, G, S, D] -> [B, L, H * D], causal.

        Row b attends to its first lengths[b] stored tokens; the last L of them are the new tokens.
        """

    def attn_out_mlp(self, x: mx.array, attended: mx.array, w: LayerWeights) -> mx.array:
        """A layer after its attention: output projection, residual, norm, SwiGLU MLP, residual -> like x.

        x is [..., E] and attended is [..., H * D]; w has no experts.
        """

    def layer_stack(self, layers: Sequence[LayerWeights], rope: Rotary) -> LayerStack | None:
        """Returns all `layers` of a model as one operator; None if the set has none."""
