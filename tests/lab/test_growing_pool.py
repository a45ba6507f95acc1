"""Pools that grow on demand: the memory that they have, and answers that never depend on it."""

import random
from typing import Any

import mlx.core as mx
import pytest
from tests.helpers.devices import on_cpu
from tests.helpers.fuzz_answers import outcome_of
from tests.helpers.fuzz_cases import draw_config, draw_prompts
from tests.helpers.fuzz_loops import TickingClock
from tests.helpers.fuzz_models import FuzzTokenizer, Models
from tests.helpers.toy import toy_model

import tiny_llm_ref
from tiny_llm_lab.runtime.growing_pool import GrowingModel
from tiny_llm_lab.types import EngineOptions
from tiny_llm_lab.types.computing.paged import Slice

NUM_RUNS = 30


@pytest.fixture(scope="module")
def models():
    return Models(tiny_llm_ref)


def answered(model, prompts, config, **options):
    """Plans, answers and counters of an engine that serves `prompts` twice."""
    plans: list[Any] = []
    engine = tiny_llm_ref.Engine(
        model,
        FuzzTokenizer(),
        config,
        EngineOptions(**options, clock=TickingClock(), on_step=lambda plan, stats: plans.append(plan)),
    )
    answers = [outcome_of(each) for _ in range(2) for each in engine.generate(prompts)]
    cache = engine.core.prefix_cache
    return plans, answers, cache and cache.num_hit_tokens


@pytest.mark.parametrize("seed", range(NUM_RUNS))
def test_answers_and_plans_are_those_of_a_whole_pool(models, seed):
    rng = random.Random(seed)
    kind = rng.choice(("cpp", "off"))
    limit, block_size = rng.choice((24, 40, 100)), rng.choice((1, 4, 16))
    with on_cpu(kind):
        model = models.of(rng.choice(("qwen3", "bfloat16", "packed")), kind)
        prompts = draw_prompts(rng, rng.choice((4, 8)), limit, block_size, False, 0.2)
        config = draw_config(rng, limit)
        has_drafts = rng.random() < 0.4
        options = {
            "num_blocks": max(1, round(limit * rng.choice((1, 1.3, 3, 20)) / block_size)),
            "block_size": block_size,
            "kv_bits": rng.choice((None, None, 8)),
            "enable_prefix_caching": rng.random() < 0.8,
            "async_scheduling": rng.random() < 0.8,
            "proposer": tiny_llm_ref.NgramProposer(3, 1, 4) if has_drafts else None,
        }
        growing = GrowingModel(model)
        found = answered(growing, prompts, config, **options)
        assert found == answered(model, prompts, config, **options)
    [pool] = growing.pools
    assert -(-options["num_blocks"] // 64) <= pool.num_stored <= options["num_blocks"]
    assert all(len(each) == pool.num_stored for each in pool.pools)


def layers_of(pool, *slices):
    return pool.begin_step(tiny_llm_ref.StepLayout.of(pool.block_size, [Slice(*each) for each in slices]))


@pytest.mark.parametrize("kv_bits", [None, 8])
def test_a_pool_begins_small_and_doubles(kv_bits):
    model = toy_model(tiny_llm_ref)
    pool = GrowingModel(model).create_paged_kv_cache(150, 4, kv_bits)
    whole = model.create_paged_kv_cache(150, 4, kv_bits)
    assert (pool.num_blocks, pool.block_size, pool.num_stored) == (150, 4, 3)
    assert pool.nbytes * 50 == whole.nbytes
    for block, stored in ((2, 3), (3, 6), (1, 6), (23, 24), (24, 48), (96, 150), (149, 150)):
        layers_of(pool, ([block], 0, 1))
        assert pool.num_stored == stored, f"block {block}"
    assert [each.shape for each in pool.pools] == [each.shape for each in whole.pools]
    assert [each.dtype for each in pool.pools] == [each.dtype for each in whole.pools]
    with pytest.raises(ValueError, match=r"slots must be 0 to 599, not 600 to 600"):
        layers_of(pool, ([150], 0, 1))


def test_what_is_stored_outlives_growing_and_cutting():
    model = GrowingModel(toy_model(tiny_llm_ref))
    cut, whole = (model.create_paged_kv_cache(128, 4) for _ in "ab")
    layers_of(whole, ([127], 0, 1))
    assert whole.num_stored == 128

    def logits(pool, position):
        return model(mx.array([[7 + position]]), [position], layers_of(pool, ([1, 4, 9], position, 1)))

    for position, stored in enumerate([2] * 4 + [8] * 4 + [16]):
        cut.cut_behind([1, 4])
        assert mx.array_equal(logits(cut, position), logits(whole, position)), position
        assert cut.num_stored == stored
    cut.cut_behind([])
    assert [len(each) for each in cut.pools] == [2] * 4


def test_no_more_than_one_array_exists_twice():
    model = GrowingModel(toy_model(tiny_llm_ref))
    pool = model.create_paged_kv_cache(64 * 500, 16)
    layers_of(pool, ([500], 0, 1))
    before, one = mx.get_active_memory(), pool.keys[0].nbytes
    mx.reset_peak_memory()
    layers_of(pool, ([4 * 500], 0, 1))
    grown = mx.get_active_memory() - before
    assert mx.get_peak_memory() <= before + grown + one + 2**16
    assert grown > 4 * one
