"""The given Metal kernel for decodes with long contexts: emulated, and on a Mac once more on its GPU."""

import random
from typing import Any

import mlx.core as mx
import pytest
from tests.helpers import metal_emulator
from tests.helpers.paging import Requests
from tests.helpers.tolerance import F32, assert_close, rounding

from tiny_llm_lab.runtime.native.device import partitioned
from tiny_llm_lab.types import UserError

Launches = list[tuple[dict[str, Any], mx.array]]


@pytest.fixture(params=metal_emulator.PLACES)
def launches(request, monkeypatch):
    """What every launch was given, and what came of it."""
    made, make = Launches(), partitioned._kernel

    def recorded(*names):
        def call(**launch):
            made.append((launch, make(*names)(**launch)[0]))
            return [made[-1][1]]

        return call

    metal_emulator.install(monkeypatch, request.param)
    monkeypatch.setattr(partitioned, "_kernel", recorded)
    return made


def attended(step, scale=0.0):
    """[T, 1, H * D] of a step's rows."""
    at = step.layout
    rows = zip(at.query_starts, at.query_starts[1:], strict=False)
    owners = [request for request, (start, end) in enumerate(rows) for _ in range(start, end)]
    seen = [position + 1 for position in at.positions]
    arrays = (step.new_q, step.keys, step.values, at.block_tables, mx.array(owners), mx.array(seen))
    return partitioned.partitioned_attention(*arrays, scale or step.new_q.shape[-1] ** -0.5, max(seen))


def some_lengths(seed, most):
    return random.Random(seed).choices(range(1, most + 1), k=2)


LENGTHS = [
    (1, 1, [1500, *some_lengths(1, 600)]),
    (2, 2, [1, 511, 512]),
    (2, 1, [513, 1]),
    (4, 1, some_lengths(5, 300)),
    (7, 1, [512, *some_lengths(2, 60)]),
    (16, 2, [1, *some_lengths(3, 60)]),
    (9, 1, some_lengths(4, 60)),
]


@pytest.mark.parametrize(("D", "block_size"), [(64, 16), (80, 8), (128, 32), (256, 16)])
@pytest.mark.parametrize(("H", "G", "lengths"), LENGTHS)
def test_rows_of_different_lengths(llm, launches, D, block_size, H, G, lengths):
    step = Requests(llm, lengths, [1] * len(lengths), block_size, H=H, G=G, D=D)
    assert_close(attended(step), step.want(), F32, dtype=mx.float32, legend="[T, 1, H * D]")
    assert len(launches) == (1 if max(lengths) <= 512 else 2)


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
def test_16_bits_are_summed_in_32(llm, launches, dtype):
    step = Requests(llm, [514, 5], [1, 1], 16, H=1, G=1, D=64, dtype=dtype)
    assert_close(attended(step), step.want(), rounding(dtype, 1), dtype=dtype, legend="[T, 1, H * D]")
    assert launches[0][1].dtype == mx.float32, "what is merged is rounded once"


def test_several_rows_of_a_request(llm, launches):
    step = Requests(llm, [3, 514, 30], [2, 3, 1], 16, H=2, G=1, D=64)
    assert_close(attended(step), step.want(), F32, dtype=mx.float32, legend="[T, 1, H * D]")


@pytest.mark.parametrize("scale", [30.0, -30.0])
def test_scores_far_from_zero(llm, launches, scale):
    step = Requests(llm, [515, 2], [1, 1], 16, H=2, G=1, D=64)
    got = attended(step, scale)
    step.q = [q * (scale * 8) for q in step.q]
    assert_close(got, step.want(), rounding(mx.float32, 400), legend="[T, 1, H * D]")


def test_what_lies_behind_a_rows_tokens_is_not_computed(llm, launches):
    attended(Requests(llm, [1030, 1, 512, 513], [1] * 4, 16, H=2, G=1, D=64))
    (_, parts), _ = launches
    written = mx.all(mx.isfinite(parts[..., :66]), axis=-1)
    if metal_emulator.EMULATOR.is_on:  # a GPU's memory holds whatever it held
        assert written[:, 0].tolist() == written[:, 1].tolist()
        assert written[:, 0].tolist() == [[True] * n + [False] * (3 - n) for n in (3, 1, 1, 2)]
        assert not mx.any(mx.isfinite(parts) & ~written[..., None])


GROUPS = [(2, 2, 1, 2), (14, 2, 7, 2), (8, 1, 8, 1), (9, 1, 5, 2), (32, 2, 8, 4)]


@pytest.mark.parametrize(("H", "G", "simdgroups", "groups"), GROUPS)
def test_query_heads_of_a_kv_head_share_threadgroups(llm, launches, H, G, simdgroups, groups):
    step = Requests(llm, [2], [1], 16, H=H, G=G, D=64)
    assert_close(attended(step), step.want(), F32, dtype=mx.float32, legend="[T, 1, H * D]")
    [(launch, _)] = launches
    assert launch["threadgroup"] == (32, simdgroups, 1) and launch["grid"] == (32, simdgroups * groups, 1)


@pytest.mark.parametrize(("H", "D"), [(2, 66), (2, 132), (2, 264), (3, 64)])
def test_what_it_cannot_compute_is_refused(H, D):
    pool, index = mx.zeros((1, 2, 4, D)), mx.zeros((8, 8), mx.int32)
    with pytest.raises(UserError, match="this kernel cannot take"):
        partitioned.partitioned_attention(
            mx.zeros((1, H, 1, D)), pool, pool, index, index[0], index[0] + 1, 1.0, 1
        )
