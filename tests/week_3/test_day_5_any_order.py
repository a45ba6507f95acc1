"""Day 3.5: a scheduler of policies, classes and grids under calls in any order."""

import pytest
from tests.helpers.any_order import check_in_any_order
from tests.helpers.any_order_scheduler import AnyClasses


@pytest.mark.task("3.5.3")
def test_classes_in_any_order(llm):
    check_in_any_order(lambda: AnyClasses(llm), examples=50, steps=30)
