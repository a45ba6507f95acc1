"""Day 3.6: other settings between two steps change when answers come, and never which."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import rule
from tests.helpers.any_order import check_in_any_order
from tests.helpers.any_order_scheduler import LIMIT
from tests.helpers.serving import make_engine
from tests.helpers.toy import toy_model
from tests.week_3.test_day_5_any_order import AnyClasses

from tiny_llm_lab.types import SchedulerConfig, UserError

CHUNKED = SchedulerConfig(max_num_batched_tokens=64, max_num_seqs=8, max_model_len=64)
WHOLE = SchedulerConfig(
    max_num_batched_tokens=64, max_num_seqs=8, max_model_len=64, enable_chunked_prefill=False
)


def one_step(scheduler, plan):
    sampled = {}
    for sequence in scheduler.running:
        num_new = plan.num_scheduled_tokens.get(sequence.request_id, 0)
        if num_new and sequence.needs_sample(num_new):
            sampled[sequence.request_id] = [7]
    scheduler.commit(plan, sampled)


def scheduler_of(llm, config, num_blocks=64):
    return llm.Scheduler(config, llm.BlockPool(num_blocks, 16))


def sequence_of(llm, name, length, **fields):
    return llm.TokenSequence(name, list(range(length)), **fields)


@pytest.mark.task("3.6.3")
def test_a_prompt_that_was_begun_in_chunks_is_finished_beside_decodes(llm):
    scheduler = scheduler_of(
        llm, SchedulerConfig(max_num_batched_tokens=10, max_num_seqs=8, max_model_len=64)
    )
    for i in range(6):
        scheduler.add(sequence_of(llm, f"decodes {i}", 1))
    one_step(scheduler, scheduler.schedule())
    scheduler.add(sequence_of(llm, "long", 64))
    plan = scheduler.schedule()
    assert plan.num_scheduled_tokens["long"] == 4
    one_step(scheduler, plan)
    scheduler.reconfigure(WHOLE)
    plan = scheduler.schedule()
    assert plan.num_scheduled_tokens["long"] == 58, "60 are missing, and 6 of 64 are the decodes'"
    one_step(scheduler, plan)
    assert scheduler.schedule().num_scheduled_tokens["long"] == 2


@pytest.mark.task("3.6.3")
def test_fewer_places_than_requests_that_run(llm):
    scheduler = scheduler_of(llm, CHUNKED)
    for i in range(6):
        scheduler.add(sequence_of(llm, str(i), 3, priority_class="interactive" if i < 2 else "batch"))
    one_step(scheduler, scheduler.schedule())
    few = SchedulerConfig(max_num_batched_tokens=64, max_num_seqs=3, max_model_len=64)
    scheduler.reconfigure(few)
    scheduler.add(sequence_of(llm, "late", 3, priority_class="batch"))
    assert list(scheduler.schedule().num_scheduled_tokens) == list("012345"), (
        "running requests go on, no other joins"
    )
    scheduler = scheduler_of(llm, CHUNKED)
    for i in range(6):
        scheduler.add(sequence_of(llm, str(i), 3, priority_class="interactive" if i < 2 else "batch"))
    one_step(scheduler, scheduler.schedule())
    scheduler.reconfigure(few)
    scheduler.add(sequence_of(llm, "urgent", 3))
    plan = scheduler.schedule()
    assert len(scheduler.running) == 3, "an urgent request gets a place, and only as many run as have one"
    assert list(plan.num_scheduled_tokens) == ["0", "1", "urgent"]


@pytest.mark.task("3.6.3")
@pytest.mark.parametrize(
    "changed",
    [{"max_model_len": 32}, {"policy": "fair"}, {"chunk_grid": 60}],
    ids=lambda each: next(iter(each)),
)
def test_what_cannot_be_changed_is_refused_and_nothing_changes(llm, changed):
    scheduler = scheduler_of(llm, CHUNKED)
    with pytest.raises(UserError):
        scheduler.reconfigure(SchedulerConfig(**vars(CHUNKED) | changed))
    assert scheduler.config == CHUNKED


@pytest.mark.task("3.7.2")
def test_a_step_ahead_keeps_to_the_smaller_budget(llm):
    scheduler = scheduler_of(llm, CHUNKED)
    for i in range(6):
        scheduler.add(sequence_of(llm, str(i), 3))
    one_step(scheduler, scheduler.schedule())
    plan = scheduler.schedule()
    small = SchedulerConfig(max_num_batched_tokens=4, max_num_seqs=4, max_model_len=64)
    scheduler.reconfigure(small)
    assert scheduler.schedule_next(plan) is None
    one_step(scheduler, plan)
    assert scheduler.schedule().total_num_scheduled_tokens == 4


@pytest.mark.task("3.6.5")
def test_a_controller_keeps_its_chunks(llm):
    engine = make_engine(llm, toy_model(llm), CHUNKED, budget_controller=object())
    with pytest.raises(UserError):
        engine.core.reconfigure(WHOLE)
    assert engine.core.config == CHUNKED


# A scheduler under calls in any order, while its settings change and drafts come and go


class AnyDrafts(AnyClasses):
    """With drafts, and settings that change."""

    MOST_DRAFTED = 2

    @rule(
        budget=st.integers(4, 20),
        num_seqs=st.integers(1, 4),
        threshold=st.sampled_from((0, 4)),
        mode=st.sampled_from(("mixed", "alternate")),
        is_chunked=st.booleans(),
    )
    def reconfigure(self, budget, num_seqs, threshold, mode, is_chunked):
        policy = self.config.policy
        config = SchedulerConfig(
            budget if is_chunked else max(budget, LIMIT),
            num_seqs,
            LIMIT,
            threshold,
            is_chunked,
            policy,
            mode,
        )
        self.scheduler.reconfigure(config)
        self.config = config


@pytest.mark.task("3.6.3")
def test_changing_settings_in_any_order(llm):
    check_in_any_order(lambda: AnyDrafts(llm), examples=50, steps=30)
