"""Day 3.4: a scheduler under calls in any order."""

import pytest
from tests.helpers.any_order import check_in_any_order
from tests.helpers.any_order_scheduler import AnySchedule


@pytest.mark.task("3.4.3")
def test_a_schedule_in_any_order(llm):
    check_in_any_order(lambda: AnySchedule(llm), examples=50, steps=30)
