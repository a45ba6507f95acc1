"""Day 3.6: a scheduler under calls in any order, while its settings change and drafts come and go."""

import pytest
from tests.helpers.any_order import check_in_any_order
from tests.helpers.any_order_scheduler import AnyDrafts


@pytest.mark.task("3.6.3")
def test_changing_settings_in_any_order(llm):
    check_in_any_order(lambda: AnyDrafts(llm), examples=50, steps=30)
