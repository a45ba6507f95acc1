"""Day 3.6: a scheduler under calls in any order, while its settings change and drafts come and go."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import rule
from tests.helpers.any_order import check_in_any_order
from tests.helpers.any_order_scheduler import LIMIT
from tests.week_3.test_day_5_any_order import AnyClasses

from tiny_llm_lab.types import SchedulerConfig


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
