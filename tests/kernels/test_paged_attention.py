"""Attention over pages: against float64, and to the last bit what dense rows give."""

import mlx.core as mx
import pytest
from tests.helpers.matrices import assert_same_bits, evaluated
from tests.helpers.paging import Requests
from tests.helpers.tolerance import as_float64, assert_close
from tests.helpers.toy import random_array
from tests.kernels.test_attention import of_attention, want

from tiny_llm_lab import load_solution

# Stored tokens of requests, and how many of them are new: decodes and chunks, around the edges of blocks.
STEPS = [
    ([1], [1]),
    ([33], [33]),
    ([64, 65, 1], [1, 1, 1]),
    ([131, 40, 32, 96], [1, 17, 32, 1]),
    ([70, 5, 200], [50, 5, 3]),
]
BLOCK_SIZES = [1, 3, 12, 16, 32, 64]


class Step(Requests):
    """Requests [H or G, length, D] of one step, in pages and in rows."""

    def __init__(self, lengths, sizes, block_size, H=4, G=2, D=64, dtype=mx.float32):
        super().__init__(load_solution("ref"), lengths, sizes, block_size, H, G, D, dtype)
        self.lengths, (self.starts, _, self.tables) = lengths, self.where
        evaluated(self.new_q, self.tables, *self.q, *self.k, *self.v)

    def paged(self, k):
        scale = self.new_q.shape[-1] ** -0.5
        return k.paged_attention(self.new_q, self.keys, self.values, *self.where, scale)

    def alone(self, k, r):
        """Request r as the only row of a dense batch: [L, 1, H * D]."""
        q = self.q[r][None, :, self.lengths[r] - self.sizes[r] :]
        out = k.attention(
            q, self.k[r][None], self.v[r][None], self.lengths[r], True, q.shape[-1] ** -0.5, True
        )
        return out.swapaxes(0, 1)


@pytest.mark.parametrize("block_size", BLOCK_SIZES)
@pytest.mark.parametrize(("lengths", "sizes"), STEPS)
def test_pages_hold_what_rows_hold(k, dtype, lengths, sizes, block_size):
    step = Step(lengths, sizes, block_size, dtype=dtype)
    got = step.paged(k)
    for r, (start, end) in enumerate(zip(step.starts, step.starts[1:], strict=False)):
        what = f"request {r} of {lengths}, blocks of {block_size}"
        assert_same_bits(got[start:end], step.alone(k, r), what)
        q = step.q[r][None, :, lengths[r] - sizes[r] :]
        where = (q, step.k[r][None], step.v[r][None], lengths[r])
        target = want(*where)
        mine = got[start:end, 0].reshape(end - start, *target.shape[1::2]).swapaxes(0, 1)[None]
        assert_close(
            mine, target, of_attention(target, *where), dtype=dtype, what=what, legend="[B, H, L, D]"
        )


HEADS = [(2, 2, 7), (8, 1, 80), (24, 1, 16), (25, 1, 16), (64, 2, 80), (14, 2, 128)]


@pytest.mark.parametrize(("H", "G", "D"), HEADS)
def test_heads_and_their_size(k, H, G, D):
    step = Step([70, 33, 128], [40, 1, 2], 32, H, G, D)
    want = mx.concatenate([step.alone(k, r) for r in range(3)])
    assert_same_bits(step.paged(k), want, f"{H} heads, {G} kv heads, D {D}")


@pytest.mark.parametrize(("H", "G", "block_size"), [(10, 5, 16), (10, 5, 32), (256, 16, 32)])
@pytest.mark.parametrize("lengths", [[128, 128], [96, 96, 40, 96, 200, 33, 96, 64]])
def test_many_requests_of_one_token(k, dtype, lengths, H, G, block_size):
    """A thread takes several kv heads at once: of five two and two and one, or all; of 16 a few."""
    step = Step(lengths, [1] * len(lengths), block_size, H, G, dtype=dtype)
    got = step.paged(k)
    for r in range(len(lengths)):
        what = f"request {r} of {lengths}, blocks of {block_size}"
        assert_same_bits(got[r : r + 1], step.alone(k, r), what)


def test_requests_that_share_blocks(k):
    step = Step([96, 96], [1, 32], 32)
    shared = mx.concatenate([step.tables[:1], step.tables[:1]])
    where = (step.starts, step.lengths, shared)
    got = k.paged_attention(step.new_q, step.keys, step.values, *where, 0.125)
    q = step.q[1][None, :, 64:]
    want = k.attention(q, step.k[0][None], step.v[0][None], 96, True, 0.125, True).swapaxes(0, 1)
    assert_same_bits(got[1:], want, "the second request reads the blocks of the first")


def test_rows_without_requests(k):
    step = Step([40], [1], 32)
    none = mx.zeros((0, 1), mx.int32)
    out = k.paged_attention(step.new_q[:0], step.keys, step.values, [0], [], none, 0.125)
    assert out.shape == (0, 1, 256)


@pytest.mark.parametrize("block_size", BLOCK_SIZES)
def test_rows_are_stored_in_their_slots(k, dtype, block_size):
    pool, added = evaluated(
        random_array(1, 7, 2, block_size, 5, dtype=dtype), random_array(2, 4, 2, 1, 5, dtype=dtype)
    )
    slots = [6 * block_size, 2 * block_size + block_size // 2, 7 * block_size - 1, block_size - 1][
        : 4 if block_size > 1 else 2
    ]
    want = as_float64(pool).copy()
    for t, slot in enumerate(slots):
        want[slot // block_size, :, slot % block_size] = as_float64(added)[t, :, 0]
    got = k.append_rows(pool, added[: len(slots)], mx.array(slots, mx.int32))
    assert_same_bits(got.astype(mx.float32), mx.array(want), "the pool")


def test_a_pool_is_changed_in_place_even_while_a_step_still_reads_it(k):
    pools = [mx.zeros((64, 2, 32, 64))]
    added, slots = random_array(1, 3, 2, 1, 64), mx.array([5, 2000, 77], mx.int32)
    mx.eval(pools, added, slots)
    mx.synchronize()
    before, size = mx.get_active_memory(), pools[0].nbytes
    mx.reset_peak_memory()
    for _ in range(3):
        held = pools[0]
        pools[0] = k.append_rows(held, added, slots)
        mx.async_eval(pools, mx.sum(held))
    mx.synchronize()
    assert mx.get_peak_memory() - before < size / 4, "a second pool was allocated"


@pytest.mark.parametrize("slot", [-1, 128, 2**31 - 1])
def test_a_slot_beyond_the_pool_is_an_error(k, slot):
    pool, added = mx.zeros((4, 2, 32, 8)), mx.zeros((1, 2, 1, 8))
    with pytest.raises(ValueError, match=f"slots must be 0 to 127, not {slot}"):
        k.append_rows(pool, added, mx.array([slot], mx.int32))
    with pytest.raises(ValueError, match="2 slots for 1 rows"):
        k.append_rows(pool, added, mx.array([0, 1], mx.int32))
    with pytest.raises(ValueError, match="slots must be int32"):
        k.append_rows(pool, added, mx.array([0], mx.uint32))


def test_wrong_layouts_are_told(k):
    q, pool = mx.zeros((3, 4, 1, 8)), mx.zeros((4, 2, 32, 8))
    tables = mx.array([[0, 1], [3, 0]], mx.int32)

    def run(starts=(0, 1, 3), lengths=(40, 20), tables=tables, q=q, pool=pool):
        return k.paged_attention(q, pool, pool, list(starts), list(lengths), tables, 1.0)

    assert run().shape == (3, 1, 32)
    for block in (-1, 4, 2**30):
        with pytest.raises(ValueError, match=f"blocks must be 0 to 3, not {block}"):
            run(tables=mx.array([[0, 1], [block, 0]], mx.int32))
    for lengths in ((65, 20), (40, 1), (0, 20)):
        with pytest.raises(ValueError, match="length must be between its rows and what its blocks hold"):
            run(lengths=lengths)
    for starts in ((0, 1), (0, 1, 2), (1, 1, 3)):
        with pytest.raises(ValueError, match="starts must lead from 0"):
            run(starts=starts)
    with pytest.raises(ValueError, match="its rows and what"):
        run(starts=(0, 4, 3))
    with pytest.raises(ValueError, match="G a divisor of H"):
        run(q=mx.zeros((3, 3, 1, 8)))
