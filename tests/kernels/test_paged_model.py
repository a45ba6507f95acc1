"""Pages, chunks, company and threads do not change one bit of the logits, with the C++ kernels on."""

import random

import mlx.core as mx
import pytest
from tests.helpers.matrices import assert_same_bits
from tests.helpers.paging import PagedPrompts
from tests.kernels.test_invariance import in_all_numbers, kernels_on, model_of, on_every_copy, stored_dtype

from tiny_llm_lab.types import Wanted
from tiny_llm_lab.types.computing.paged import Slice

__all__ = ["kernels_on"]

TEXT = "Seven boats lie at the quay, and none of them is blue. The river rises in the hills. " * 9


@on_every_copy
@in_all_numbers
@pytest.mark.parametrize("kv_bits", [None, 8])
def test_logits_over_pages(llm, kernels_on, threads, model_dtype, kv_bits):
    model, tokenizer = model_of(llm, model_dtype)
    ids = tokenizer.encode(TEXT)
    prompts = [ids[:120], ids[7:60], ids[3:36], ids[50:51]]
    dtype, rng = stored_dtype(model_dtype), random.Random(1)
    at_once = [[120, 53, 33, 1]]
    if kv_bits is None:
        want = [model(mx.array([prompt]))[0] for prompt in prompts]
    else:
        want = PagedPrompts(llm, model, prompts, 32, dtype, kv_bits).run(at_once)
    schedules = {
        "at once": at_once,
        "decodes beside a chunk": [[0, 50, 20, 0], [64, 1, 1, 1], [56, 1, 1, 0], [0, 1, 11, 0]],
        "anything": [[rng.randint(0, 25) for _ in prompts] for _ in range(24)] + at_once,
    }
    for num, block_size in ((2, 32), (1, 32), (2, 64), (2, 16), (2, 5)):
        threads(num)
        for name, steps in schedules.items():
            if block_size in (16, 5) and name != "decodes beside a chunk":
                continue
            paged = PagedPrompts(llm, model, prompts, block_size, dtype, kv_bits)
            got = paged.run([s for s in steps if any(s)])
            for r, logits in enumerate(got):
                assert_same_bits(
                    logits, want[r], f"request {r}, {name}, blocks of {block_size}, {num} threads"
                )


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
