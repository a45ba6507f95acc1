"""What the metrics come to on workloads whose every step is known."""

import asyncio

import pytest
from tests.helpers.fragile import BrokenError, Fragile
from tests.helpers.metered import Metered
from tests.helpers.toy import EOS
from tests.helpers.toy_server import toy_engine

from tiny_llm_lab.runtime.solution import load_serving
from tiny_llm_lab.serving.server.metrics.engine_metrics import EngineMetrics
from tiny_llm_lab.types import SamplingParams, SchedulerConfig

LLM = load_serving("ref")
CONFIG = SchedulerConfig(max_num_batched_tokens=16, max_num_seqs=2, max_model_len=64)


def observed(histogram):
    return sum(histogram.counts), histogram.sum


def ends(metrics):
    return {reason: number for reason, number in metrics.totals().request_success.items() if number}


@pytest.fixture(scope="module")
def three():
    """Four steps of a second: a 16 | a 4, b 3 | a 1, c 3 | a 1, c 1. Queue times 0, 1 and 2 seconds."""
    served = Metered(LLM, CONFIG)
    served.add("a", [97] * 20, max_tokens=3)
    served.add("b", [98] * 3, max_tokens=1)
    served.add("c", [99] * 3, max_tokens=2)
    assert served.metrics.totals().num_requests_waiting == 3
    served.run()
    assert served.clock.now == 4
    return served.metrics


def test_tokens_and_requests_are_counted(three):
    totals = three.totals()
    assert (totals.prompt_tokens, totals.prompt_tokens_computed, totals.generation_tokens) == (26, 26, 6)
    assert (totals.num_requests_running, totals.num_requests_waiting, totals.kv_cache_usage_perc) == (0, 0, 0)
    assert ends(three) == {"length": 3}
    assert observed(totals.iteration_tokens_total) == (4, 16 + 7 + 4 + 2)
    assert totals.iteration_tokens_total.counts[:4] == [0, 3, 1, 0], "2, 4 and 7 are at most 8; 16 at most 16"
    assert observed(totals.request_prompt_tokens) == (3, 26)
    assert observed(totals.request_generation_tokens) == (3, 6)
    assert observed(totals.request_params_max_tokens) == (3, 6)


def test_every_latency_is_that_of_the_schedule(three):
    totals = three.totals()
    assert observed(totals.step_time_seconds) == (4, 4)
    assert observed(totals.time_to_first_token_seconds) == (3, 2 + 2 + 3)
    assert observed(totals.inter_token_latency_seconds) == (3, 1 + 1 + 1)
    assert observed(totals.request_time_per_output_token_seconds) == (2, 1 + 1)
    assert observed(totals.e2e_request_latency_seconds) == (3, 4 + 2 + 4)
    assert observed(totals.request_queue_time_seconds) == (3, 0 + 1 + 2)
    assert observed(totals.request_prefill_time_seconds) == (3, 2 + 1 + 1)
    assert observed(totals.request_decode_time_seconds) == (3, 2 + 0 + 1)
    assert observed(totals.request_inference_time_seconds) == (3, 4 + 1 + 2)


def test_an_aborted_request_has_tokens_and_no_latency():
    served = Metered(LLM, CONFIG)
    served.add("gone", [97] * 3, max_tokens=9)
    served.add("waits", [98] * 3, max_tokens=9)
    served.step()
    served.step()
    usage = served.metrics.totals().kv_cache_usage_perc
    assert usage == 2 / 256, "a block of 16 tokens each, of 256"
    served.abort("gone")
    served.abort("waits")
    totals = served.metrics.totals()
    assert ends(served.metrics) == {"abort": 2}
    assert (totals.prompt_tokens, totals.generation_tokens) == (6, 4)
    assert observed(totals.time_to_first_token_seconds)[0] == 2
    assert observed(totals.e2e_request_latency_seconds)[0] == 0
    assert (totals.num_requests_running, totals.kv_cache_usage_perc) == (0, 0), "though no step follows"


def test_a_prompt_that_is_computed_again_is_asked_once():
    served = Metered(LLM, CONFIG, num_blocks=4, block_size=4, enable_prefix_caching=False)
    served.add("a", [97] * 4, max_tokens=8)
    served.add("b", [98] * 4, max_tokens=8)
    served.run()
    totals = served.metrics.totals()
    assert totals.num_preemptions > 0
    assert totals.prompt_tokens == 8 < totals.prompt_tokens_computed
    assert totals.generation_tokens == 16
    assert observed(totals.time_to_first_token_seconds) == (2, 1 + 1)
    assert observed(totals.request_queue_time_seconds) == (2, 0), "until the first admission"
    assert ends(served.metrics) == {"length": 2}


def test_cached_tokens_are_hits():
    served = Metered(LLM, CONFIG)
    for name in ("first", "second"):
        served.add(name, [97] * 40, max_tokens=1)
        served.run()
    totals = served.metrics.totals()
    assert (totals.prefix_cache_queries, totals.prefix_cache_hits) == (80, 32), "two full blocks of 16"
    assert (totals.prompt_tokens, totals.prompt_tokens_cached, totals.prompt_tokens_computed) == (80, 32, 48)


def test_drafts_are_counted():
    served = Metered(LLM, CONFIG, proposer=LLM.NgramProposer(num_tokens=2))
    served.add("a", [97, 98, 99] * 5, max_tokens=12)
    served.run()
    num_steps = int(served.clock.now)
    totals, stats = served.metrics.totals(), served.engine.core.spec_stats
    assert totals.spec_decode_num_drafts == stats.num_drafts > 0
    assert totals.spec_decode_num_draft_tokens == stats.num_draft_tokens
    assert totals.spec_decode_num_accepted_tokens == stats.num_accepted_tokens
    assert 1 < num_steps < 12, "a step that accepts drafts brings several tokens"
    assert observed(totals.inter_token_latency_seconds) == (num_steps - 1,) * 2, "1 s before each step"


def test_an_answer_without_a_token_ends_with_its_step(monkeypatch):
    served = Metered(LLM, CONFIG)
    monkeypatch.setattr(served.engine.tokenizer, "eos_token_ids", set(range(EOS + 2)))
    served.add("a", [97] * 3, max_tokens=5, ignore_eos=False)
    served.run()
    totals = served.metrics.totals()
    assert ends(served.metrics) == {"stop": 1}
    assert (totals.prompt_tokens, totals.generation_tokens) == (3, 0)
    assert observed(totals.time_to_first_token_seconds) == (0, 0)
    assert observed(totals.e2e_request_latency_seconds) == (1, 1)
    assert observed(totals.request_prefill_time_seconds) == (1, 1)


def test_a_failed_step_and_a_fresh_cache_on_the_real_thread():
    models, metrics = list[Fragile](), EngineMetrics()

    def fragile(model):
        models.append(Fragile(model))
        return models[0]

    engine = toy_engine(CONFIG, [metrics], fragile)

    async def answer():
        async for _ in engine.generate([97] * 20, SamplingParams(max_tokens=2, ignore_eos=True)):
            pass

    async def scenario():
        await engine.start()
        await answer()
        models[0].error = BrokenError()
        with pytest.raises(BrokenError):
            await answer()
        models[0].error = None
        await answer()
        await engine.stop()

    asyncio.run(scenario())
    totals = metrics.totals()
    assert ends(metrics) == {"length": 2, "error": 1}
    assert (totals.num_requests_running, totals.num_requests_waiting) == (0, 0)
    assert (totals.prefix_cache_queries, totals.prefix_cache_hits) == (40, 0), "never backwards"
    assert observed(totals.e2e_request_latency_seconds)[0] == 2


def test_a_copy_does_not_change(three):
    copy = three.totals()
    copy.request_success["stop"] += 1
    copy.step_time_seconds.observe(1)
    assert ends(three) == {"length": 3}
    assert sum(three.totals().step_time_seconds.counts) == 4
