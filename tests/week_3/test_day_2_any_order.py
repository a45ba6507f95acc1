"""Day 3.2: pages under steps in any order: chunks, decodes, requests that share blocks, come and leave."""

import pytest
from tests.helpers.any_order import check_in_any_order
from tests.helpers.any_order_caches import AnyPages


@pytest.mark.task("3.2.1")
def test_pages_in_any_order(llm):
    check_in_any_order(lambda: AnyPages(llm), examples=10, steps=20)


@pytest.mark.task("3.2.5")
def test_pages_of_8_bits_in_any_order(llm):
    check_in_any_order(lambda: AnyPages(llm, kv_bits=8), examples=10, steps=20)
