"""Day 3.4: the instrument that tells what a step costs those who wait for its end."""

import random

import pytest
from tests.helpers.scheduling import Job, config, drive

from tiny_llm_lab.types import UserError

pytestmark = pytest.mark.task("3.4.6")


def test_without_other_numbers_the_prompt_has_256_tokens_and_the_answer_16(llm):
    costs = {threshold: llm.decode_step_costs(threshold) for threshold in (0, 16, 32)}
    assert costs == {0: [257, 2] + [1] * 13, 16: [17] * 15, 32: [33] * 8 + [2] + [1] * 6}
    assert {threshold: sum(each) for threshold, each in costs.items()} == {0: 272, 16: 255, 32: 272}, (
        "with 16 tokens a step the answer ends before the long prompt does"
    )


def test_a_longer_prompt_and_a_reader_with_a_single_token(llm):
    assert llm.decode_step_costs(100, 250, 6) == [101, 101, 51, 2, 1]
    assert llm.decode_step_costs(0, 40, 1) == [], "its only token is the first, which is excepted"


def test_steps_without_work_count_while_the_next_request_is_on_its_way(llm):
    steps = llm.probe(config(), [(2, "a", 3, 2), (7, "b", 4, 1)])
    assert steps == [{}, {}, {"a": 3}, {"a": 1}, {}, {}, {}, {"b": 4}]
    assert llm.probe(config(), []) == []


@pytest.mark.parametrize("seed", range(15))
def test_any_traffic_is_scheduled_as_step_by_step(llm, seed):
    """Against the tests' own loop over the same scheduler."""
    rng = random.Random(seed)
    budget = rng.choice((4, 17, 64, 300))
    setting = config(
        max_num_batched_tokens=budget,
        max_num_seqs=rng.randint(1, min(4, budget)),
        long_prefill_token_threshold=rng.choice((0, 1, 7, 40)),
    )
    step, arrivals = 0, []
    for number in range(rng.randint(1, 8)):
        step += rng.choice((0, 0, 1, 3))
        arrivals.append((step, f"r{number}", rng.randint(1, 90), rng.randint(1, 12)))
    found = llm.probe(setting, arrivals)
    run = drive(llm, setting, [Job(name, length, most, step=at) for at, name, length, most in arrivals])
    assert [each for each in found if each] == [each for each in run.tokens() if each], arrivals
    num_computed = sum(length + most - 1 for _, _, length, most in arrivals)
    assert sum(sum(each.values()) for each in found) == num_computed, "the last token is never computed"


def test_a_prompt_that_can_never_run_is_refused(llm):
    with pytest.raises(UserError):
        llm.probe(config(max_model_len=64), [(0, "a", 65, 1)])
