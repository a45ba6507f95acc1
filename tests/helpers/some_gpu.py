"""A GPU as far as the self-tests can tell, kernels for its decodes, and what a run of either takes."""

from collections.abc import Callable
from pathlib import Path

import mlx.core as mx
import pytest
from tests.helpers import metal_emulator
from tests.helpers.fake_clock import FakeClock
from tests.helpers.paging import Requests

from tiny_llm_lab.runtime import native
from tiny_llm_lab.runtime.native.device import (
    chunk_ways,
    decode_checks,
    delta_checks,
    fused_checks,
    ladder,
    partitioned,
)
from tiny_llm_lab.runtime.native.device.verdict import Verdict
from tiny_llm_lab.runtime.native.mlx_ops import MlxOps

Kernel = Callable[..., mx.array]
Seconds = Callable[[int, int], float]
REF = "tiny_llm_ref"
# A self-test times kernels with tokens by so much fewer.
SHORTER = 256


class SomeGpu:
    """MLX claims a GPU with Metal; an attention of MLX's takes a second, a kernel what the test says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
        self.clock = FakeClock()
        self._attention = mx.fast.scaled_dot_product_attention
        metal_emulator.install(monkeypatch, "emulated")
        monkeypatch.setattr(mx, "default_device", lambda: mx.Device(mx.gpu, 0))
        monkeypatch.setattr(mx, "device_info", lambda: {"device_name": "Some M9"})
        monkeypatch.setattr(mx.fast, "scaled_dot_product_attention", self.attention)
        monkeypatch.setenv(native.VARIABLE, "auto")
        monkeypatch.setenv("TINY_LLM_CACHE", str(cache))
        # A CPU takes long for many stored tokens, and its products of 16 bits are wrong by some percent.
        monkeypatch.setattr(decode_checks, "timed_shape", lambda rows, n, dim: (rows, n // SHORTER, 1))
        monkeypatch.setattr(ladder, "_ROUNDS", 1)
        monkeypatch.setattr(ladder, "_WARM_UPS", 0)
        monkeypatch.setattr(decode_checks, "_DTYPES", (mx.float32,))
        monkeypatch.setattr(fused_checks, "_DTYPES", (mx.float32,))
        monkeypatch.setattr(fused_checks, "LONG", [((1, 1, 256), (1, n, 1030)) for n in (1023, 1024)])
        # The given kernel is right, and as slow as none that is used.
        monkeypatch.setattr(partitioned, "partitioned_attention", self.kernel(lambda rows, tokens: 3))
        slow = (3.0,) * 12
        for module, judge in ((delta_checks, "judge_delta"), (chunk_ways, "judge_chunks")):
            monkeypatch.setattr(
                module, judge, lambda what, *_, **__: Verdict(what, True, "right", slow, slow)
            )

    def attention(self, *arrays: mx.array, **options: object) -> mx.array:
        self.clock.now += 1
        return self._attention(*arrays, **options)

    def kernel(self, seconds: Seconds = lambda rows, tokens: 0.5, wrong_dim: int = 0) -> Kernel:
        """A right kernel that takes seconds(rows, tokens), but for heads of `wrong_dim` numbers."""

        def call(q, keys, values, tables, owners, visible, scale, longest=0):  # type: ignore[no-untyped-def]
            tokens = int(mx.max(visible).item())
            assert longest in (0, tokens), "a package's kernel is not told"
            self.clock.now += seconds(len(q), tokens)
            assert min(tables.size, owners.size, visible.size) >= 8, "MLX compiles the kernel anew"
            owners, visible = owners[: len(q)], visible[: len(q)]
            k, v = (pool[tables[owners]].swapaxes(1, 2).flatten(2, 3) for pool in (keys, values))
            seen = (mx.arange(k.shape[2]) < visible[:, None])[:, None, None]
            out = self._attention(q, k, v, scale=scale, mask=seen).swapaxes(1, 2).flatten(2)
            return 1.1 * out if q.shape[-1] == wrong_dim else out

        return call


def attended(ops: MlxOps, step: Requests, **more: object) -> mx.array:
    at = step.layout
    where = (step.keys, step.values, at.query_starts, at.lengths, at.block_tables)
    finite = [mx.nan_to_num(pool) for pool in where[:2]]
    return ops.paged_attention(step.new_q, *finite, *where[2:], step.new_q.shape[-1] ** -0.5, **more)
