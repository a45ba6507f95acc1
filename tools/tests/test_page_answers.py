"""Answers of Predict and of Questions: the reference computes what the page says."""

from math import log
from pathlib import Path

import mlx.core as mx
import pytest
from tests.helpers.scheduling import Job, drive

from tiny_llm_lab import load_solution
from tiny_llm_lab.types import SchedulerConfig
from tiny_llm_ref.engine.token_budget import fair_shares
from tiny_llm_ref.generate.sampler import apply_min_p, apply_top_k, apply_top_p
from tiny_llm_ref.layers.attention import causal_mask
from tiny_llm_ref.layers.basics import softmax
from tiny_llm_ref.layers.delta_rule import gated_delta_rule
from tiny_llm_ref.layers.layer_norm import RMSNorm
from tiny_llm_ref.layers.positional_encoding import RoPE

PAGES = Path(__file__).resolve().parents[2] / "book" / "src"


def rounded(array):
    return [round(number, 3) for number in array.flatten().tolist()]


def softmaxes():
    rows = ([0.0, 0.0, float("-inf")], [0.0, log(3)], [1000.0, 1000 + log(3)])
    return [rounded(softmax(mx.array(row))) for row in rows]


def turned(traditional):
    x = mx.array([1.0, 0, 0, 0]).reshape(1, 1, 1, 4)
    return rounded(RoPE(4, 2, traditional=traditional)(x, [1]))


def kept(cut, amount):
    scores = cut(mx.log(mx.array([0.2, 0.4, 0.1, 0.3])), amount)
    return [name for name, score in zip("abcd", scores.tolist(), strict=True) if score > float("-inf")]


def recalled(*query):
    """What a memory that has stored (4, 2) under (1, 0) answers to a query."""
    tokens = [[1.0, 0], [1.0, 0], [4.0, 2]], [[*query], [0.0, 0], [0.0, 0]]
    q, k, v = (mx.array([token[part] for token in tokens]).reshape(1, 2, 1, 2) for part in range(3))
    ones = mx.ones((1, 2, 1))
    return rounded(gated_delta_rule((q, k, v), ones, ones, mx.zeros((1, 1, 2, 2)), 1)[0])


def steps(budget):
    """Steps that bring a prompt of 4,096 tokens its first token while 30 requests decode."""
    config = SchedulerConfig(max_num_batched_tokens=budget, max_num_seqs=64, max_model_len=8192)
    jobs = [Job(str(number), 1, 60) for number in range(30)] + [Job("long", 4096, 1, step=2)]
    return len(drive(load_solution("ref"), config, jobs).chunks("long"))


@pytest.mark.parametrize(
    ("page", "words", "computed", "said"),
    [
        ("week1-01-attention", "`[1/4, 3/4]`", softmaxes, [[0.5, 0.5, 0], [0.25, 0.75], [0.25, 0.75]]),
        ("week1-02-rope", "`[0.540, 0, 0.841, 0]`", lambda: turned(False), [0.54, 0, 0.841, 0]),
        ("week1-02-rope", "`[0.540, 0.841, 0, 0]`", lambda: turned(True), [0.54, 0.841, 0, 0]),
        ("week1-03-gqa", "so 12 in all", lambda: int((causal_mask(3, 5, mx.float32) == 0).sum()), 12),
        (
            "week1-04-rmsnorm-and-mlp",
            "`[0.849, 1.131]`",
            lambda: rounded(RMSNorm(2, mx.ones(2), 0.0)(mx.array([[3.0, 4], [30, 40]]))),
            [0.849, 1.131] * 2,
        ),
        ("week1-07-sampling", "`top_k=2` keeps b and d", lambda: kept(apply_top_k, 2), ["b", "d"]),
        ("week1-07-sampling", "so b, d and a", lambda: kept(apply_top_p, 0.75), ["a", "b", "d"]),
        ("week1-07-sampling", "0.24, so b and d", lambda: kept(apply_min_p, 0.6), ["b", "d"]),
        ("week2-07b-what-chunks-cost", "⌈4,096 / 482⌉ = 9", lambda: steps(512), 9),
        ("week4-01-delta-rule", "(2.4, 1.2) for (0.6, 0.8)", lambda: recalled(0.6, 0.8), [2.4, 1.2]),
        (
            "week3-05-policies",
            "251, 10 and 251",
            lambda: fair_shares([4096, 10, 300], 512),
            [251, 10, 251],
        ),
    ],
)
def test_the_reference_computes_what_the_page_says(page, words, computed, said):
    assert words in (PAGES / f"{page}.md").read_text("utf-8")
    assert computed() == said
