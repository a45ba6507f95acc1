"""Day 3.5: a scheduler of policies, classes and grids under calls in any order."""

import pytest
from tests.helpers.any_order import check_in_any_order
from tests.helpers.any_order_scheduler import AnySchedule


class AnyClasses(AnySchedule):
    """All policies, priority classes and grids."""

    POLICIES = ("fcfs", "fair", "priority")
    CLASSES = ("interactive", "interactive", "batch")
    GRIDS = (0, 0, 2, 3)


@pytest.mark.task("3.5.3")
def test_classes_in_any_order(llm):
    check_in_any_order(lambda: AnyClasses(llm), examples=50, steps=30)
