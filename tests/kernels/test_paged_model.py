"""Pages, chunks, company and threads do not change one bit of the logits, with the C++ kernels on."""

import random

import mlx.core as mx
import pytest
from tests.helpers.matrices import assert_same_bits, evaluated
from tests.helpers.paging import scattered_blocks
from tests.helpers.toy import random_array
from tests.kernels.test_invariance import (
    assert_alone_as_in_company,
    copy,
    in_all_numbers,
    kernels_on,
    model_of,
    on_every_copy,
    stored_dtype,
)

from tiny_llm_lab.types import Wanted
from tiny_llm_lab.types.computing.paged import Slice

__all__ = ["copy", "kernels_on"]

TEXT = "Seven boats lie at the quay, and none of them is blue. The river rises in the hills. " * 9


def test_a_row_in_a_step(copy, threads, dtype):
    lengths = [5 + 31 * i % 166 for i in range(130)]
    ids, num_blocks = scattered_blocks(1, 32, lengths)
    tables = mx.array([[*row, *[0] * (6 - len(row))] for row in ids], mx.int32)
    q, keys, values = evaluated(
        random_array(1, 130, 4, 1, 64, dtype=dtype),
        *(random_array(i, num_blocks, 2, 32, 64, dtype=dtype) for i in (2, 3)),
    )

    def run(a, b):
        starts = list(range(b - a + 1))
        return copy.paged_attention(q[a:b], keys, values, starts, lengths[a:b], tables[a:b], 0.125)

    assert_alone_as_in_company(threads, run)


class Engine:
    """Prompts that go through the model in steps of packed rows."""

    def __init__(self, llm, model, prompts, block_size, dtype, kv_bits=None):
        self.ids, num_blocks = scattered_blocks(2, block_size, [len(p) for p in prompts])
        self.cache = llm.PagedKvCache(model.config, num_blocks, block_size, dtype, kv_bits)
        self.llm, self.model, self.prompts, self.block_size = llm, model, prompts, block_size
        self.done = [0] * len(prompts)

    def step(self, sizes, wanted=None):
        slices, tokens = [], []
        for r, new in enumerate(sizes):
            if new := min(new, len(self.prompts[r]) - self.done[r]):
                slices.append(Slice(self.ids[r], self.done[r], new))
                tokens += self.prompts[r][self.done[r] : self.done[r] + new]
                self.done[r] += new
        layout = self.llm.StepLayout.of(self.block_size, slices)
        layers = self.cache.begin_step(layout)
        return self.model(mx.array(tokens)[:, None], layout.positions, layers, wanted=Wanted(rows=wanted))

    def run(self, steps):
        """All prompts through, in steps of these sizes: their logits [L, V]."""
        got = [[] for _ in self.prompts]
        for sizes in steps:
            before, first = list(self.done), 0
            logits = self.step(sizes)
            mx.eval(logits)
            for r, old in enumerate(before):
                got[r].append(logits[first : first + self.done[r] - old, 0])
                first += self.done[r] - old
        assert self.done == [len(p) for p in self.prompts]
        return [mx.concatenate(parts) for parts in got]


@on_every_copy
@in_all_numbers
def test_logits_over_pages(llm, kernels_on, threads, model_dtype):
    model, tokenizer = model_of(llm, model_dtype)
    ids = tokenizer.encode(TEXT)
    prompts = [ids[:120], ids[7:60], ids[3:36], ids[50:51]]
    want = [model(mx.array([prompt]))[0] for prompt in prompts]
    rng = random.Random(1)
    dtype = stored_dtype(model_dtype)
    schedules = {
        "at once": [[120, 53, 33, 1]],
        "decodes beside a chunk": [[0, 50, 20, 0], [64, 1, 1, 1], [56, 1, 1, 0], [0, 1, 11, 0]],
        "anything": [[rng.randint(0, 25) for _ in prompts] for _ in range(24)] + [[120, 53, 33, 1]],
    }
    for num, block_size in ((2, 32), (1, 32), (2, 64), (2, 16), (2, 5)):
        threads(num)
        for name, steps in schedules.items():
            if block_size in (16, 5) and name != "decodes beside a chunk":
                continue
            got = Engine(llm, model, prompts, block_size, dtype).run([s for s in steps if any(s)])
            for r, logits in enumerate(got):
                assert_same_bits(
                    logits, want[r], f"request {r}, {name}, blocks of {block_size}, {num} threads"
                )


@on_every_copy
@in_all_numbers
def test_logits_of_some_rows(llm, kernels_on, model_dtype):
    model, tokenizer = model_of(llm, model_dtype)
    ids = tokenizer.encode(TEXT)
    prompts = [ids[:70], ids[7:60], ids[3:36]]
    dtype = stored_dtype(model_dtype)
    ways = [Engine(llm, model, prompts, 32, dtype) for _ in range(5)]
    want = ways[0].step([60, 53, 20])
    for way, rows in zip(ways[1:], ([], [59, 112, 132], [132, 3, 4, 5, 70], [0]), strict=True):
        got = way.step([60, 53, 20], rows)
        assert_same_bits(got, want[mx.array(rows, mx.int32)], f"rows {rows}")
        # What rows have stored whose logits were not asked for shows in the next step.
        assert_same_bits(way.step([5, 0, 13]), want_of_next(llm, model, prompts, dtype), f"after rows {rows}")


def want_of_next(llm, model, prompts, dtype):
    engine = Engine(llm, model, prompts, 32, dtype)
    mx.eval(engine.step([60, 53, 20]))
    return engine.step([5, 0, 13])


@on_every_copy
def test_rows_of_a_batch(llm, kernels_on):
    model, tokenizer = model_of(llm, "bfloat16")
    tokens = mx.array([tokenizer.encode(TEXT)[17 * i : 17 * i + 40] for i in range(5)])
    want = model(tokens)
    for rows in ([], [3], [4, 0, 2]):
        chosen = model(tokens, wanted=Wanted(rows=rows))
        assert_same_bits(chosen, want[mx.array(rows, mx.int32)], f"rows {rows}")
        last = model(tokens, wanted=Wanted(2, rows))
        assert_same_bits(last, want[mx.array(rows, mx.int32), -2:], f"the last two tokens of rows {rows}")


@on_every_copy
@pytest.mark.parametrize(("rows", "kv_bits"), [(None, None), ([], None), (None, 8)])
def test_a_step_of_the_model_changes_the_pools_in_place(llm, kernels_on, rows, kv_bits):
    model, tokenizer = model_of(llm, "bfloat16")
    prompt = tokenizer.encode(TEXT)[:64]
    cache = llm.PagedKvCache(model.config, 4096, 32, mx.bfloat16, kv_bits)

    def step(at):
        layout = llm.StepLayout.of(32, [Slice([9, 4], at, 8)])
        tokens = mx.array(prompt[at : at + 8])[:, None]
        logits = model(tokens, layout.positions, cache.begin_step(layout), wanted=Wanted(rows=rows))
        mx.eval(logits, cache.pools if kv_bits else [])

    step(0)
    mx.synchronize()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    for at in range(8, 64, 8):
        step(at)
    mx.synchronize()
    smallest = (cache.key_scales or cache.keys)[0]
    assert mx.get_peak_memory() - before < smallest.nbytes / 2, "a step allocates a second pool"
