"""Caches on the operators of a model, under calls in any order: what is kept between steps is right."""

import pytest
from tests.helpers.any_order import check_in_any_order
from tests.helpers.any_order_caches import AnyBatch, AnyPages

import tiny_llm_ref
from tiny_llm_lab.runtime import native
from tiny_llm_lab.runtime.native.cpp_ops import CppOps
from tiny_llm_lab.runtime.native.mlx_ops import MlxOps
from tiny_llm_lab.runtime.task_names import TaskNames

LLM = TaskNames(tiny_llm_ref)


@pytest.fixture(params=["cpp", "mlx", "mlx with masks"])
def any_ops(request):
    if request.param == "cpp":
        return CppOps(native.load("tiny_llm_ref"))
    return MlxOps(widens=True, masks=request.param != "mlx")


def test_a_batch_in_any_order(any_ops):
    check_in_any_order(lambda: AnyBatch(LLM, any_ops, may_reserve=True), examples=15)


@pytest.mark.parametrize("kv_bits", [None, 8])
def test_pages_in_any_order(any_ops, kv_bits):
    check_in_any_order(lambda: AnyPages(LLM, any_ops, kv_bits), examples=6, steps=20)
