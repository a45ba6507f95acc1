"""Day 2.6: a batch of caches under calls in any order."""

import pytest
from tests.helpers.any_order import check_in_any_order
from tests.helpers.any_order_caches import AnyBatch


@pytest.mark.task("2.6.1")
def test_a_batch_in_any_order(llm):
    check_in_any_order(lambda: AnyBatch(llm), examples=25)
