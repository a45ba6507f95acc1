"""Day 3.4: the engine on blocks of 8 bits: batching, mixed steps, sharing and preemption change no token."""

import mlx.core as mx
import pytest
from tests.helpers.probe import ScheduleProbe
from tests.helpers.serving import make_engine, mixed_prompts, serve
from tests.helpers.toy import random_tokens, toy_model

from tiny_llm_lab.types import Prompt, SamplingParams, SchedulerConfig

pytestmark = pytest.mark.task("3.6.5")

PROMPTS = mixed_prompts()


@pytest.fixture(scope="module")
def model(llm):
    return toy_model(llm)


def alone(llm, model, prompts):
    """Every prompt on an engine of its own, whole prompts in one step: [token ids]."""
    return [serve(make_engine(llm, model, kv_bits=8), [prompt])[0].token_ids for prompt in prompts]


@pytest.mark.parametrize(
    "config",
    [SchedulerConfig(), SchedulerConfig(max_num_batched_tokens=16, max_num_seqs=8)],
    ids=["defaults", "small budget"],
)
def test_answers_of_8_bits_are_those_of_each_alone(llm, model, config):
    engine = make_engine(llm, model, config, kv_bits=8)
    assert engine.core.kv_cache.keys[0].dtype == mx.int8
    done, wanted = serve(engine, PROMPTS), alone(llm, model, PROMPTS)
    assert [done[i].token_ids for i in range(len(PROMPTS))] == wanted
    assert engine.core.prefix_cache.num_hit_tokens > 0, "nothing was shared: this test shows too little"


def test_a_preempted_request_of_8_bits_goes_on_as_before(llm, model):
    settings = SamplingParams(max_tokens=60, ignore_eos=True)
    prompts = [Prompt(random_tokens(i, 30).tolist(), settings) for i in range(4)]
    engine = make_engine(llm, model, num_blocks=12, block_size=16, kv_bits=8)
    probe = ScheduleProbe(engine.core.scheduler)
    done = serve(engine, prompts)
    assert probe.preempted, "blocks never ran out: this test shows nothing"
    assert [done[i].token_ids for i in range(4)] == alone(llm, model, prompts)
