"""Day 3.6: the engine, whose every step is one forward pass; what it answers does not depend on the steps."""

import pytest
from tests.helpers.fake_clock import FakeClock
from tests.helpers.fragile import Fragile
from tests.helpers.probe import ScheduleProbe
from tests.helpers.serving import make_engine, mixed_prompts, serve
from tests.helpers.toy import ByteTokenizer, random_tokens

from tiny_llm_lab.types import Prompt, SamplingParams, SchedulerConfig, TokenEvent, UserError

pytestmark = pytest.mark.task("3.6.5")

PROMPTS = mixed_prompts()
CONFIGS = {
    "defaults": SchedulerConfig(),
    "small budget": SchedulerConfig(max_num_batched_tokens=16, max_num_seqs=8),
    "threshold": SchedulerConfig(max_num_batched_tokens=64, long_prefill_token_threshold=7),
    "one at a time": SchedulerConfig(max_num_batched_tokens=50, max_num_seqs=1),
    "alternate": SchedulerConfig(max_num_batched_tokens=64, step_mode="alternate"),
    "fair": SchedulerConfig(max_num_batched_tokens=64, policy="fair"),
    "grid": SchedulerConfig(max_num_batched_tokens=128, chunk_grid=16),
    "unchunked": SchedulerConfig(
        max_num_batched_tokens=1024, max_model_len=1024, enable_chunked_prefill=False
    ),
}


@pytest.fixture(scope="module")
def wanted(llm, model):
    """What week 2 answers, one request at a time."""
    return llm.batch_generate(model, ByteTokenizer(), PROMPTS, max_seq_len=512, batch_size=1)


def the_same(done, wanted):
    assert sorted(done) == list(range(len(wanted))), "every request ends"
    for i, want in enumerate(wanted):
        assert (done[i].token_ids, done[i].text) == (want.token_ids, want.text), f"request {i}"
        assert done[i].finish_reason == want.finish_reason


def test_all_tokens_of_a_step_have_one_time(llm, model):
    engine = make_engine(llm, model, SchedulerConfig(max_num_batched_tokens=64), clock=FakeClock(tick=1.0))
    for i, prompt in enumerate(PROMPTS[:3]):
        engine.add(str(i), prompt.content, prompt.sampling)
    while engine.has_requests:
        events = [event for each in engine.step() for event in each.events]
        found = {event.time_s for event in events if isinstance(event, TokenEvent)}
        assert len(found) <= 1, "the end of the step is the time of all that it brought"


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_answers_are_those_of_week_2(llm, model, wanted, config):
    the_same(serve(make_engine(llm, model, config), PROMPTS), wanted)


def test_only_requests_of_the_same_salt_share_a_prefix(llm, model):
    engine = make_engine(llm, model)
    tokens, found = random_tokens(2, 70).tolist(), []
    for salt in ("", "one", "one", "two", ""):
        sampling = SamplingParams(max_tokens=2, cache_salt=salt)
        before = engine.core.prefix_cache.num_hit_tokens
        serve(engine, [Prompt(tokens, sampling)])
        found.append(engine.core.prefix_cache.num_hit_tokens - before)
    assert found == [0, 0, 64, 0, 64]


def test_nor_does_a_pool_too_small_for_all(llm, model):
    settings = SamplingParams(max_tokens=60, ignore_eos=True)
    drawn = SamplingParams(max_tokens=60, ignore_eos=True, temperature=1.0, seed=3)
    prompts = [Prompt(random_tokens(i, 30).tolist(), drawn if i == 2 else settings) for i in range(4)]
    wanted = llm.batch_generate(model, ByteTokenizer(), prompts, batch_size=1)
    engine = make_engine(llm, model, num_blocks=12, block_size=16)
    probe = ScheduleProbe(engine.core.scheduler)
    the_same(serve(engine, prompts), wanted)
    assert probe.preempted, "blocks never ran out: this test shows nothing"
    assert engine.core.scheduler.pool.num_free == 12, "all blocks are back"


def test_nor_do_prefixes_that_are_found(llm, model, wanted):
    engine = make_engine(llm, model)
    the_same(serve(engine, PROMPTS), wanted)
    # Three prompts share 70 tokens: 4 full blocks of 16, which the later two find.
    assert engine.core.prefix_cache.num_hit_tokens == 2 * 64
    the_same(serve(engine, PROMPTS), wanted)
    assert engine.core.prefix_cache.num_hit_tokens > 4 * 64, "the second time every prompt finds blocks"
    off = make_engine(llm, model, enable_prefix_caching=False)
    the_same(serve(off, PROMPTS), wanted)
    assert off.core.prefix_cache is None


def test_one_forward_pass_a_step(llm, model):
    calls = []

    class Watched(Fragile):
        def __call__(self, tokens, offset, cache, wanted):
            calls.append((tokens.shape, wanted.rows))
            return model(tokens, offset, cache, wanted=wanted)

    engine = make_engine(llm, Watched(model), SchedulerConfig(max_num_batched_tokens=64))
    engine.add("a", [1, 2, 3], SamplingParams(max_tokens=4, ignore_eos=True))
    engine.step()
    engine.add("b", random_tokens(1, 100).tolist(), SamplingParams(max_tokens=2, ignore_eos=True))
    while engine.has_requests:
        engine.step()
    assert calls == [
        ((3, 1), [2]),  # the first prompt; only its last row is sampled
        ((64, 1), [0]),  # a decode and 63 of the second prompt: none of these is sampled
        ((38, 1), [0, 37]),
        ((2, 1), [0, 1]),
    ]


def test_what_a_step_returns(llm, model):
    engine = make_engine(llm, model, SchedulerConfig(max_num_batched_tokens=64))
    assert engine.step() == []
    assert not engine.has_requests
    engine.add("a", [97], SamplingParams(max_tokens=3, ignore_eos=True))
    engine.add("long", [97] * 100, SamplingParams(max_tokens=1, ignore_eos=True))
    first, second, third = engine.step(), engine.step(), engine.step()
    assert [output.request_id for output in first] == ["a"], "the long prompt is not computed yet"
    assert [output.request_id for output in second] == ["a", "long"], "both got a token"
    assert [output.completion is not None for output in second] == [False, True], "who has ended"
    assert third[0].completion is not None, "the third of 3 tokens ends the answer"
    tokens = [token for step in (first, second, third) for token in step[0].token_ids]
    assert third[0].completion.token_ids == tuple(tokens)
    assert third[0].completion.prompt_idx == 0
    assert third[0].completion.num_prompt_tokens == 1
    assert not engine.has_requests
    assert engine.core.scheduler.pool.num_free == 256


def test_a_number_and_an_arrival_of_0_are_given_ones(llm, model):
    engine, sampling = (
        make_engine(llm, model, clock=lambda: 5.0),
        SamplingParams(max_tokens=1, ignore_eos=True),
    )
    engine.add("before", [97], sampling)
    engine.add("zero", [97], sampling, prompt_idx=0, arrival_s=0.0)
    ended = {output.request_id: output.completion for output in engine.step()}
    got = {name: (done.prompt_idx, done.timing.arrival_s) for name, done in ended.items()}
    assert got["before"] == (0, 5.0), "(prompt_idx, arrival_s) where none were given"
    assert got["zero"] == (0, 0.0), "(prompt_idx, arrival_s) as they were given: only None stands for none"


def test_a_prompt_longer_than_the_models_positions_is_refused(llm, model):
    most = model.config.max_position_embeddings
    engine = make_engine(llm, model, SchedulerConfig(max_model_len=4 * most), num_blocks=2 * most)
    engine.add("b", [97] * 3)
    with pytest.raises(UserError):
        engine.add("a", [97] * (most + 1))
    assert [each.request_id for each in engine.step()] == ["b"], "the other request goes on"
