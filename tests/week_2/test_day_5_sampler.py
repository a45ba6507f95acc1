"""Day 2.5: samplers that have operators draw from all rows at once."""

import mlx.core as mx
import pytest
from tests.helpers.toy import random_array

from tiny_llm_lab import load_checkpoint
from tiny_llm_lab.types import SamplingParams

pytestmark = pytest.mark.task("2.5.6")
WARM = SamplingParams(temperature=0.8, top_k=5, seed=3)
COLD = SamplingParams(temperature=0.3, top_p=0.9, seed=4)


class Recording:
    """Operators that remember what they were asked, and answer with numbers that nothing else returns."""

    def __init__(self):
        self.asked = []

    def draw(self, logits, rows):
        self.asked.append([(row.sampling, row.key) for row in rows])
        return mx.arange(100, 100 + len(logits), dtype=mx.uint32)

    def argmax(self, x):
        self.asked.append("argmax")
        return mx.arange(200, 200 + len(x), dtype=mx.uint32)


def test_rows_of_several_requests_are_one_draw(llm):
    ops = Recording()
    warm, greedy, cold = (llm.Sampler(each, ops) for each in (WARM, SamplingParams(), COLD))
    parts = [(warm, 5, 2), (greedy, 90, 1), (cold, 0, 2)]
    drawn = llm.sample_rows(random_array(1, 5, 40), parts)
    assert drawn.tolist() == [100, 101, 102, 103, 104]
    (rows,) = ops.asked
    assert [sampling for sampling, _ in rows] == [WARM, WARM, SamplingParams(), COLD, COLD]
    keys = [key for _, key in rows]
    assert [*keys[:2], *keys[3:]] == [warm.key(5), warm.key(6), cold.key(0), cold.key(1)]


def test_greedy_rows_alone_are_one_argmax(llm):
    ops = Recording()
    greedy = llm.Sampler(SamplingParams(), ops)
    logits = random_array(2, 3, 40)
    assert llm.sample_rows(logits, [(greedy, 5, 2), (greedy, 9, 1)]).tolist() == [200, 201, 202]
    assert greedy(logits, 5).tolist() == [200, 201, 202]
    assert ops.asked == ["argmax", "argmax"]


def test_a_sampler_alone_draws_by_its_operators(llm):
    ops = Recording()
    warm = llm.Sampler(WARM, ops)
    assert warm(random_array(3, 2, 40), 7).tolist() == [100, 101]
    assert ops.asked == [[(WARM, warm.key(7)), (WARM, warm.key(8))]]


@pytest.mark.parametrize("settings", [{}, {"top_k": 20}, {"top_p": 0.9}, {"min_p": 0.05}])
def test_operators_draw_what_arrays_draw(llm, kernels_on, settings):
    kernels = llm.build_model(load_checkpoint("random:qwen3-shrunk")).ops
    sampling = SamplingParams(temperature=0.9, seed=6, **settings)
    logits = random_array(4, 64, 300) * 3
    want, got = (llm.Sampler(sampling, ops)(logits, 11).tolist() for ops in (None, kernels))
    assert got == want
