"""The operators that a model runs on when it does not run on plain arrays: one interface, several sets."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import mlx.core as mx

from tiny_llm_lab.types.computing.layer_stack import LayerStack
from tiny_llm_lab.types.computing.weight import QuantizedWeights, Weight

Offsets = Sequence[int]  # stored tokens of each row of the batch before the new ones


class Rotary(Protocol):
    """Rotary positions, as an operator needs them."""

    seq_len: int  # positions are 0 to seq_len - 1
    traditional: bool  # pairs are neighbours; otherwise dimension i and i + D / 2
    base: float | None  # pair i turns by base^(-2i / D) radians a position; None: by 1 / periods[i]
    magnitude: float  # the result is multiplied by it: 1 without a scaling that changes it

    @property
    def periods(self) -> mx.array:
        """Positions for each pair to turn by a radian: [D / 2] float32."""
        ...

    def tables(self, num_positions: int) -> tuple[mx.array, mx.array]:
        """Cosines and sines [P, D / 2] float32 times `magnitude`, P >= num_positions."""
        ...


@dataclass(frozen=True)
class LayerWeights:
    """The parameters of one transformer layer, E wide, with H * D numbers of queries and G * D of keys."""

    eps: float  # of all norms
    norm: mx.array  # [E], before attention
    qkv: list[Weight]  # [H * D, E], [G * D, E], [G * D, E]
    biases: list[mx.array | None]  # of qkv: three, None in Qwen3
    query_norm: mx.array | None  # [D], None in Qwen2
    key_norm: mx.array | None  # [D], None in Qwen2
    out: Weight  # [E, H * D]
    mlp_norm: mx.array  # [E], before the feed-forward
    gate: Weight  # [I, E], of N experts [N, I, E]
    up: Weight  # like gate
    down: Weight  # [E, I], of N experts [N, E, I]
    router: Weight | None = None  # [N, E] of a mixture of experts

    @classmethod
    def of(cls, eps: float, weights: Mapping[str, Weight]) -> "LayerWeights":
        """From a layer's parameters under the names of a checkpoint, as in self_attn.q_proj.weight."""

        def vector(name: str) -> mx.array | None:
            found = weights.get(name)
            assert not isinstance(found, QuantizedWeights), f"{name} is a vector"
            return found

        q, k, v, out = (weights[f"self_attn.{part}_proj.weight"] for part in "qkvo")
        norm, mlp_norm = vector("input_layernorm.weight"), vector("post_attention_layernorm.weight")
        assert norm is not None and mlp_norm is not None
        router = weights.get("mlp.gate.weight")
        mlp = "mlp" if router is None else "mlp.switch_mlp"
        return cls(
            eps=eps,
            norm=norm,
            qkv=[q, k, v],
            biases=[vector(f"self_attn.{part}_proj.bias") for part in "qkv"],
            query_norm=vector("self_attn.q_norm.weight"),
            key_norm=vector("self_attn.k_norm.weight"),
            out=out,
            mlp_norm=mlp_norm,
            gate=weights[f"{mlp}.gate_proj.weight"],
            up=weights[f"{mlp}.up_proj.weight"],
            down=weights[f"{mlp}.down_proj.weight"],
            router=router,
        )


class StoringOps(Protocol):
    """The operators that write keys and values."""

    def append(self, stored: mx.array, added: mx.array, offsets: Offsets) -> mx.array:
        """stored [R, G, S, D] with added [B, G, L, D] in its first B rows from `offsets` on, B <= R.

        Writes into the memory of `stored` if nothing else holds that array, otherwise into a copy.
        """
        ...

    def grow(self, stored: mx.array, rows: int, room: int, used: Sequence[int]) -> mx.array:
        """Storage [rows, G, room, D] that begins as stored [B, G, S, D]: the first used[b] tokens of row b.

        What was not copied may be anything: attention reads no token behind a row's last one.
        """
        ...

    def append_rows(self, stored: mx.array, added: mx.array, slots: mx.array) -> mx.array:
        """The pool stored [blocks, G, block size, D] with row t of added [T, G, 1, D] in slots[t] (int32).

        A pool of scales and its rows have no D. Writes into the memory of `stored`, which ends.
        """
        ...

    def quantize_rows(self, x: mx.array) -> Sequence[mx.array]:
        """Rows x [..., D] as int8 [..., D], and their scales [...] in float32."""
        ...


class KvStorage(StoringOps, Protocol):
    """What writes and grows the storage of keys and values: operators, or plain arrays."""

    has_free_rows: bool  # rows of storage cost nothing until something is written to them


class CommonOps(StoringOps, Protocol):
    """The operators that models call and that a package's C++ has in the same shape.

    Floats are float32, float16 or bfloat16, and results have the dtype of the first array unless stated.
    Operators are lazy like MLX's own. Letters are the course's: B batch, L new tokens, S stored tokens, T
    packed rows, H heads, G kv heads, D head dimension, E hidden size, I size of the MLP, N experts, V
    vocabulary.
    """

    def embedding(self, tokens: mx.array, weight: Weight) -> mx.array:
        """Rows of weight [V, E] for integer tokens [...] -> [..., E], in the dtype of weight or scales."""
        ...

    def linear(
        self, x: mx.array, weights: Sequence[Weight], biases: Sequence[mx.array | None] = ()
    ) -> list[mx.array]:
        """x [..., K] times the transpose of each weight [N, K], plus its bias [N] -> [..., N] for each.

        `biases` is empty, or has an entry for every weight.
        """
        ...

    def rms_norm(
        self, x: mx.array, weight: mx.array, eps: float, delta: mx.array | None = None
    ) -> tuple[mx.array, mx.array]:
        """x + delta (x without `delta`) [..., E], and its norm times weight [E]."""
        ...

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

        Request r has the rows starts[r] to starts[r + 1] - 1, lengths[r] stored tokens and the block table
        tables[r] (int32). Pools of int8 come with `kv_scales` [blocks, G, block size] in float32.
        """
        ...

    def swiglu(self, gate: mx.array, up: mx.array) -> mx.array:
        """silu(gate) * up, elementwise on [..., I]."""
        ...

    def argmax(self, x: mx.array) -> mx.array:
        """The index of each row's largest number, the first of equals: [..., V] -> [...] uint32."""
        ...

    def top_k(self, x: mx.array, k: int) -> mx.array:
        """The k largest numbers of each row in descending order: [..., V] -> [..., k] float32."""
        ...


class KernelOps(CommonOps, KvStorage, Protocol):
    """The operators of a model: those of a package's C++ on a CPU, MLX's fused ones elsewhere."""

    name: str  # of the set: "cpp" or "mlx"
    starts_early: bool  # operators had better begin while Python still plans those behind them
    lists_top_k: bool  # `top_k` is worth a wait for its result: what it saves is sorting all V scores

    def qkv_rope(
        self, x: mx.array, w: LayerWeights, rope: Rotary, offsets: Offsets, kept: int
    ) -> Sequence[mx.array]:
        """Rotated queries [B, H, kept, D] of the last `kept` tokens, keys and values [B, G, L, D].

        x [B, L, E] is normalised, projected by w.qkv, normalised per head by w.query_norm and w.key_norm if
        there are any, and rotated from `offsets` on. Raises ValueError for a position that `rope` does not
        have.
        """
        ...

    def attention(
        self, query: mx.array, key: mx.array, value: mx.array, lengths: Offsets, scale: float
    ) -> mx.array:
        """query [B, H, L, D] over key, value [B, G, S, D] -> [B, L, H * D], causal.

        Row b attends to its first lengths[b] stored tokens, of which the last L are the new ones.
        """
        ...

    def attn_out_mlp(self, x: mx.array, attended: mx.array, w: LayerWeights) -> mx.array:
        """A layer after its attention: output projection, residual, norm, SwiGLU MLP, residual -> like x.

        x is [..., E], attended [..., H * D]; w has no experts.
        """
        ...

    def expert_mlp(
        self, x: mx.array, experts: mx.array, shares: mx.array, gate: Weight, up: Weight, down: Weight
    ) -> mx.array:
        """The SwiGLU MLPs of each token's K experts, times their shares and summed: [T, E].

        x [T, E], experts [T, K] uint32, shares [T, K] float32; gate and up [N, I, E], down [N, E, I].
        """
        ...

    def layer_stack(self, layers: Sequence[LayerWeights], rope: Rotary) -> LayerStack | None:
        """All `layers` of a model, without experts, as one operator; None: this set has none for them."""
        ...
