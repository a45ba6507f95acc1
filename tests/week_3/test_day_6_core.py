"""Day 3.6: the engine's core when a step fails while others wait and draft."""

import pytest
from tests.helpers.five_requests import LONG, TWO_AT_A_TIME, add_five, assert_new, prompt
from tests.helpers.fragile import BrokenError, Fragile
from tests.helpers.serving import make_engine, serve
from tests.helpers.toy import ByteTokenizer, random_tokens, toy_model

from tiny_llm_lab.types import Prompt, SchedulerConfig, UserError


@pytest.fixture(scope="module")
def model(llm):
    return toy_model(llm)


@pytest.mark.task("3.6.3")
@pytest.mark.parametrize("error", [BrokenError, KeyboardInterrupt])
def test_a_failed_step_ends_those_that_wait_as_well(llm, model, error):
    fragile = Fragile(model)
    engine = make_engine(llm, fragile, TWO_AT_A_TIME)
    old = engine.scheduler
    add_five(engine)
    fragile.error = error()
    with pytest.raises(error):
        engine.step()
    fragile.error = None
    assert_new(engine, old)
    assert not engine.abort("r4"), "a request that waited is not known any more"
    prompts = [Prompt(prompt(i), LONG) for i in range(3)]
    wanted = llm.batch_generate(model, ByteTokenizer(), prompts)
    done = serve(engine, prompts)
    assert [done[i].token_ids for i in range(3)] == [each.token_ids for each in wanted]


@pytest.mark.task("3.6.3")
@pytest.mark.parametrize("place", ["commit", "schedule"])
def test_an_interrupt_in_the_accounting_leaves_nothing_half_done(llm, model, monkeypatch, place):
    engine = make_engine(llm, model, TWO_AT_A_TIME)
    old = engine.scheduler
    add_five(engine)
    work = getattr(old, place)

    def interrupted(*args):
        work(*args)
        raise KeyboardInterrupt

    monkeypatch.setattr(old, place, interrupted)
    with pytest.raises(KeyboardInterrupt):
        engine.step()
    assert_new(engine, old)
    [wanted] = llm.batch_generate(model, ByteTokenizer(), [Prompt([97] * 9, LONG)])
    assert serve(engine, [Prompt([97] * 9, LONG)])[0].token_ids == wanted.token_ids


@pytest.mark.task("3.6.3")
def test_a_refused_request_changes_nothing(llm, model):
    engine = make_engine(llm, model, SchedulerConfig(max_model_len=50), num_blocks=2)
    with pytest.raises(UserError):
        engine.add("bad", [97] * 40)
    assert not engine.has_requests
    assert not engine.abort("bad")


@pytest.mark.task("3.6.3")
@pytest.mark.parametrize(
    "config",
    [
        SchedulerConfig(max_num_batched_tokens=512, chunk_grid=32),
        SchedulerConfig(max_num_batched_tokens=512, max_model_len=512, enable_chunked_prefill=False),
    ],
)
def test_a_latency_slo_needs_chunks_of_any_size(llm, model, config):
    with pytest.raises(UserError, match="chunk_grid to 0 and keep chunked prefill on"):
        make_engine(llm, model, config, budget_controller=object())
    assert make_engine(llm, model, config).budget_controller is None


@pytest.mark.task("3.6.3")
@pytest.mark.parametrize("is_enabled", [True, False])
def test_the_prefix_cache_can_be_off(llm, model, is_enabled):
    engine = make_engine(llm, model, enable_prefix_caching=is_enabled)
    same = Prompt(random_tokens(1, 70).tolist(), LONG)
    first, second = (serve(engine, [same])[0] for _ in range(2))
    assert first.token_ids == second.token_ids
    assert (engine.prefix_cache is not None) == is_enabled
    if is_enabled:
        assert engine.prefix_cache.num_hit_tokens == 64, "four blocks of the second prompt"


@pytest.mark.task("3.6.3")
def test_release_ends_requests_and_gives_everything_back(llm, model):
    engine = make_engine(llm, model, TWO_AT_A_TIME)
    add_five(engine)
    engine.release()
    assert not engine.has_requests
    assert engine.scheduler.pool.num_free == 256
    assert engine.kv_cache.nbytes == 0
