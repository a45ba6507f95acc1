"""What compiled C++ offers to Python: the operators of a package, and the bridge that makes them."""

from collections.abc import Sequence
from typing import Protocol

import mlx.core as mx

from tiny_llm_lab.types import Offsets, Weight

Note = tuple[str, float, float, float]  # operator, seconds, bytes it must move, operations it must do


class KernelSet(Protocol):
    """The C++ of one package for one instruction set; the class of that name in binding.cpp.

    Floats are float32, float16 or bfloat16 and results have the dtype of the first array unless stated.
    Operators are lazy like MLX's own. A call with wrong shapes or dtypes raises ValueError at once.
    Letters are the course's: B batch, L new tokens, S stored tokens, T packed rows, H heads, G kv heads, D
    head dimension, E hidden size, I size of the MLP, V vocabulary.
    """

    def linear(
        self, x: mx.array, weights: Sequence[Weight], biases: Sequence[mx.array | None] = ()
    ) -> list[mx.array]:
        """x [..., K] times the transpose of each weight [N, K], plus its bias [N] -> [..., N] for each.

        Packed weights have 4 or 8 bits in groups of 32, 64 or 128, the same for all of them. `biases` is
        empty, or has an entry for every weight.
        """
        ...

    def quantized_matmul_step(self, step: int, x: mx.array, weight: Weight) -> mx.array:
        """x [..., K] times the transpose of a packed weight [N, K] -> [..., N], by step 1 to 4 of day 2.2."""
        ...

    def attention(
        self,
        query: mx.array,
        key: mx.array,
        value: mx.array,
        lengths: Offsets,
        causal: bool,
        scale: float,
        flat: bool = False,
    ) -> mx.array:
        """query [B, H, L, D] over key, value [B, G, S, D] -> [B, H, L, D], or [B, L, H * D] if `flat`.

        Row b attends to its first lengths[b] stored tokens, of which the last L are the new ones.
        """
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

    def qkv_rope(
        self,
        x: mx.array,
        norm: mx.array,
        eps: float,
        weights: Sequence[Weight],
        biases: Sequence[mx.array | None],
        query_norm: mx.array | None,
        key_norm: mx.array | None,
        cos: mx.array,
        sin: mx.array,
        traditional: bool,
        offsets: Offsets,
        kept: int,
    ) -> list[mx.array]:
        """Rotated queries [B, H, kept, D] of the last `kept` tokens, keys and values [B, G, L, D].

        x [B, L, E] is normalised by norm [E], projected by the three weights and rotated by the tables cos,
        sin [positions, D / 2] float32 from `offsets` on.
        """
        ...

    def attn_out_mlp(
        self,
        x: mx.array,
        attended: mx.array,
        out: Weight,
        norm: mx.array,
        eps: float,
        gate: Weight,
        up: Weight,
        down: Weight,
    ) -> mx.array:
        """A layer after its attention: output projection, residual, norm, SwiGLU MLP, residual -> like x.

        x is [..., E], attended [..., H * D]; the weights are out [E, H * D], gate and up [I, E], down [E, I].
        """
        ...

    def rms_norm(
        self, x: mx.array, weight: mx.array, eps: float, delta: mx.array | None = None
    ) -> tuple[mx.array, mx.array]:
        """x + delta (x without `delta`) [..., E], and its norm times weight [E]."""
        ...

    def rope(
        self,
        x: mx.array,
        offsets: Offsets,
        cos: mx.array,
        sin: mx.array,
        traditional: bool = False,
        weight: mx.array | None = None,
        eps: float = 0.0,
    ) -> mx.array:
        """x [B, L, H, D], normalised by `weight` [D] if given, rotated by cos, sin [positions, D / 2]."""
        ...

    def append(self, stored: mx.array, added: mx.array, offsets: Offsets) -> mx.array:
        """stored [R, G, S, D] with added [B, G, L, D] in its first B rows from `offsets` on, B <= R.

        Writes into the memory of `stored` if nothing else holds that array, otherwise into a copy.
        """
        ...

    def grow(self, stored: mx.array, rows: int, room: int, used: Sequence[int]) -> mx.array:
        """Storage [rows, G, room, D] that begins as stored [B, G, S, D]: the first used[b] tokens of row b.

        What was not copied is never filled: attention reads no token behind a row's last one.
        """
        ...

    def append_rows(self, stored: mx.array, added: mx.array, slots: mx.array) -> mx.array:
        """The pool stored [blocks, G, block size, D] with row t of added [T, G, 1, D] in slots[t] (int32).

        A pool of scales and its rows have no D. Always writes into the memory of `stored`.
        """
        ...

    def quantize_rows(self, x: mx.array) -> list[mx.array]:
        """Rows x [..., D] as int8 [..., D], and their scales [...] in float32."""
        ...

    def swiglu(self, gate: mx.array, up: mx.array) -> mx.array:
        """silu(gate) * up, elementwise on [..., I]."""
        ...

    def embedding(self, tokens: mx.array, weight: Weight) -> mx.array:
        """Rows of weight [V, E] for integer tokens [...] -> [..., E], in the dtype of weight or scales."""
        ...

    def argmax(self, x: mx.array) -> mx.array:
        """The index of each row's largest number, the first of equals: [..., V] -> [...] uint32."""
        ...

    def top_k(self, x: mx.array, k: int) -> mx.array:
        """The k largest numbers of each row in descending order: [..., V] -> [..., k] float32."""
        ...


class MakeKernelSet(Protocol):
    """The constructor of KernelSet."""

    def __call__(self, path: str) -> KernelSet: ...


class Binding(Protocol):
    """The compiled bridge to MLX, with the thread pool and the profile of the process."""

    KernelSet: MakeKernelSet

    def set_num_threads(self, count: int) -> None:
        """Raises ValueError if count < 1, RuntimeError if the system does not start so many."""
        ...

    def num_threads(self) -> int: ...

    def settle(self) -> None:
        """Forget the tasks that MLX skipped behind an operator's error."""
        ...

    def start_profile(self) -> None: ...

    def stop_profile(self) -> list[Note]: ...
