"""Rows of probabilities, and whether tokens were drawn from them."""

import mlx.core as mx
import numpy as np
from tests.helpers import oracle

START = 7  # tokens of the prompt
# Rows of one step: what comes first, and what follows when the first draft tokens were accepted: [K + 1, V],
# and what the draft tokens are drawn from: [K, V].
P = np.array([[0.40, 0.30, 0.15, 0.10, 0.05], [0.05, 0.10, 0.20, 0.25, 0.40], [0.50, 0.05, 0.15, 0.15, 0.15]])
Q = np.array([[0.10, 0.50, 0.10, 0.20, 0.10], [0.20, 0.00, 0.20, 0.30, 0.30]])
CUTS = [
    {"temperature": 1.0},
    {"temperature": 0.6, "top_k": 3},
    {"temperature": 1.3, "top_k": 4, "top_p": 0.9, "min_p": 0.3},
]
ROUNDS = 1000


def logits_of(probs):
    return mx.array(np.log(np.maximum(probs, 1e-30)).astype(np.float32))


def cut_probs(llm, probs, sampling):
    """The distribution that a sampler of week 1 draws from, [..., V] float64."""
    s = sampling
    return oracle.softmax(llm.truncated_logits(logits_of(probs), s.temperature, s.top_p, s.top_k, s.min_p))


def assert_follows(tokens, probs, what):
    """Pearson's chi-square test of `tokens` against `probs` at one in a million.

    The quantile is Wilson and Hilferty's (z = 4.75). A correct sampler with other seeds would fail once in
    a million runs; the wrong distributions of these tests exceed the bound by far.
    """
    tokens, possible = np.array(tokens), np.flatnonzero(probs > 0)
    assert set(tokens.tolist()) <= set(possible.tolist()), f"{what}: a token without probability was drawn"
    counts = np.bincount(tokens, minlength=len(probs))[possible]
    want = probs[possible] / probs[possible].sum() * len(tokens)
    assert len(tokens) > 0 and want.min() >= 5, f"{what}: {len(tokens)} tokens are too few for the test"
    chi2, df = float(((counts - want) ** 2 / want).sum()), max(1, len(possible) - 1)
    bound = df * (1 - 2 / (9 * df) + 4.75 * (2 / (9 * df)) ** 0.5) ** 3
    assert chi2 < bound, f"{what}: drawn {counts.tolist()}, expected about {want.round().tolist()}"


def assert_rows_follow(steps, probs):
    """Token i of those steps that brought one must have the distribution of row i."""
    for i, row in enumerate(probs):
        tokens = [step[i] for step in steps if len(step) > i]
        if len(tokens) * row[row > 0].min() >= 5:
            assert_follows(tokens, row, f"token {i} of a step")


def deviations(share):
    """Five standard deviations of a frequency over ROUNDS draws: 1 in 2 million is further away."""
    return 5 * (max(share * (1 - share), 1e-4) / ROUNDS) ** 0.5
