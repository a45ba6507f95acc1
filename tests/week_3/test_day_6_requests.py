"""Day 3.6: the requests of the engine's core, and the blocks they hold, before any step."""

import pytest
from tests.helpers.core import make_core
from tests.helpers.five_requests import LONG, TWO_AT_A_TIME, prompt

from tiny_llm_lab.types import SchedulerConfig, UserError

pytestmark = pytest.mark.task("3.6.3")


def test_an_admitted_request_waits(llm, model):
    core = make_core(llm, model)
    assert not core.has_requests
    request = core.add("a", prompt(0), LONG)
    assert core.has_requests
    assert core.scheduler.waiting == (request.sequence,)


def test_a_refused_request_changes_nothing(llm, model):
    core = make_core(llm, model, SchedulerConfig(max_model_len=50), num_blocks=2)
    with pytest.raises(UserError):
        core.add("bad", [97] * 40, LONG)
    assert not core.has_requests, "a request that `admit` refused is not remembered"
    assert not core.abort("bad"), "a request that `admit` refused is not remembered"


def test_an_aborted_request_ends_and_frees_its_blocks(llm, model):
    core = make_core(llm, model, TWO_AT_A_TIME)
    requests = [core.add(f"r{i}", prompt(i), LONG) for i in range(3)]
    core.scheduler.schedule()
    assert core.scheduler.pool.num_free == 256 - 4, "two blocks for each of the two that run"
    assert core.abort("r2") and core.abort("r1"), "whether it waits or runs"
    assert [each.answer.finish_reason for each in requests] == [None, "abort", "abort"], "r0 still runs"
    assert core.scheduler.pool.num_free == 256 - 2, "r1 ran and gave its two blocks back"
    assert not core.abort("r1"), "there is no such request any more"
    core.abort_all()
    assert not core.has_requests
    assert core.scheduler.pool.num_free == 256, "nobody holds a block after abort_all"


def test_the_blocks_have_the_size_that_was_asked_for(llm, model):
    core = make_core(llm, model, num_blocks=7, block_size=8, kv_bits=8)
    assert (core.scheduler.pool.num_blocks, core.scheduler.pool.block_size) == (7, 8)
    assert (core.kv_cache.num_blocks, core.kv_cache.block_size) == (7, 8)
    assert core.kv_cache.key_scales, "kv_bits reaches the cache"


@pytest.mark.parametrize("is_enabled", [True, False])
def test_the_prefix_cache_can_be_off(llm, model, is_enabled):
    core = make_core(llm, model, enable_prefix_caching=is_enabled)
    assert (core.prefix_cache is not None) == is_enabled
    assert core.scheduler.prefix_cache is core.prefix_cache


@pytest.mark.parametrize(
    "config",
    [
        SchedulerConfig(max_num_batched_tokens=512, chunk_grid=32),
        SchedulerConfig(max_num_batched_tokens=512, max_model_len=512, enable_chunked_prefill=False),
    ],
)
def test_a_latency_slo_needs_chunks_of_any_size(llm, model, config):
    with pytest.raises(UserError):
        make_core(llm, model, config, budget_controller=object())
    make_core(llm, model, config)


def test_release_ends_requests_and_gives_everything_back(llm, model):
    core = make_core(llm, model, TWO_AT_A_TIME)
    for i in range(5):
        core.add(f"r{i}", prompt(i), LONG)
    core.scheduler.schedule()
    core.release()
    assert not core.has_requests
    assert core.scheduler.pool.num_free == 256
    assert core.kv_cache.nbytes == 0
