"""Day 3.6: priority classes in the engine change when an answer comes, never which."""

import pytest
from tests.helpers.probe import ScheduleProbe
from tests.helpers.scheduling import POLICIES
from tests.helpers.serving import make_engine
from tests.helpers.toy import random_tokens, toy_model

from tiny_llm_lab.types import SamplingParams, SchedulerConfig


@pytest.mark.task("3.6.5")
@pytest.mark.parametrize("policy", POLICIES)
def test_no_answer_depends_on_the_class(llm, policy):
    model = toy_model(llm)
    prompts = [random_tokens(i, length).tolist() for i, length in enumerate((30, 5, 44, 12, 38, 3))]
    sampling = SamplingParams(max_tokens=20, ignore_eos=True)
    setting = SchedulerConfig(max_num_batched_tokens=16, max_num_seqs=3, max_model_len=70, policy=policy)
    engine = make_engine(llm, model, setting, num_blocks=12, block_size=8)
    probe, answers = ScheduleProbe(engine.core.scheduler), {}
    for i, prompt in enumerate(prompts):
        engine.add(str(i), prompt, sampling, priority_class="batch" if i % 2 == 0 else "interactive")
        for output in [*engine.step(), *engine.step()]:
            answers.setdefault(output.request_id, []).extend(output.token_ids)
    while engine.has_requests:
        for output in engine.step():
            answers.setdefault(output.request_id, []).extend(output.token_ids)
    assert probe.preempted, "or this shows nothing"
    alone = llm.batch_generate(model, engine.tokenizer, prompts, sampling=sampling, batch_size=1)
    assert [tuple(answers[str(i)]) for i in range(6)] == [each.token_ids for each in alone]
