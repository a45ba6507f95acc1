"""A router against float64, and all experts of a layer against one at a time."""

from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest
from tests.helpers.experts import assert_routed
from tests.helpers.matrices import as_stored, assert_same_bits, matrix
from tests.helpers.tolerance import as_float64, assert_close, of_kernel
from tests.helpers.toy import random_array
from tests.kernels.conftest import NAMES, kernel_set
from tests.kernels.test_linear import KINDS
from tests.kernels.test_refusals import PACKED, W, X, refused

from tiny_llm_lab.types import QuantizedWeights


@pytest.mark.parametrize("is_normed", [True, False])
@pytest.mark.parametrize("count", [1, 8, 130, 512])
def test_router(k, dtype, is_normed, count):
    assert_routed(k.route, random_array(5, 9, count, dtype=dtype) * 3, min(count, 8), is_normed)


def test_equal_scores(k):
    scores = mx.array([[0.0, 2, 2, 1, 2], [3, 3, 3, 3, 3], [-200, -200, 0, -200, -300]])
    assert k.route(scores, 3, True)[0].tolist() == [[1, 2, 4], [0, 1, 2], [2, 0, 1]]


@pytest.mark.parametrize(("bits", "activation_bits"), KINDS)
def test_experts_of_many_tokens(k, dtype, bits, activation_bits):
    """More than are computed at a time, experts that nobody uses, and rows that fill no block."""
    rows, width, count = 96 if bits else 128, 192, 7
    shapes = (rows, width), (rows, width), (width, rows)
    each = [
        [matrix(10 * n + i, *shape, bits, 32, dtype, activation_bits) for n in range(count)]
        for i, shape in enumerate(shapes)
    ]
    stacks = [[_stacked(form) for form in zip(*map(as_stored, part), strict=True)] for part in each]
    for tokens in (1, 5, 40, 530):
        x = random_array(3, tokens, width, dtype=dtype)
        draw = np.random.default_rng(tokens)
        chosen = np.stack([1 + draw.permutation(count - 1)[:3] for _ in range(tokens)])
        shares = draw.random((tokens, 3)).astype(np.float32)
        gated = [k.swiglu(*k.linear(x, [gate, up])) for gate, up in zip(*each[:2], strict=True)]
        alone = np.stack([as_float64(k.linear(g, [down])[0]) for g, down in zip(gated, each[2], strict=True)])
        want = sum(shares[:, i, None] * alone[chosen[:, i], np.arange(tokens)] for i in range(3))
        given = x, mx.array(chosen.astype(np.uint32)), mx.array(shares)
        got = [k.expert_mlp(*given, *(stack[form] for stack in stacks)) for form in (0, 1)]
        assert_close(got[0], want, of_kernel(want, dtype), dtype=dtype, what=f"{tokens} tokens")
        assert_same_bits(got[1], got[0], f"{tokens} tokens, in blocks")
        one = slice(tokens // 2, tokens // 2 + 1)
        alone = k.expert_mlp(*(part[one] for part in given), *(stack[0] for stack in stacks))
        assert_same_bits(alone, got[0][one], f"one of {tokens} tokens")


def _stacked(parts):
    if isinstance(parts[0], mx.array):
        return mx.stack(parts)
    arrays = [mx.stack([getattr(part, name) for part in parts]) for name in ("weight", "scales", "biases")]
    first = parts[0]
    return QuantizedWeights(
        *arrays,
        first.group_size,
        first.bits,
        activation_bits=first.activation_bits,
        in_blocks=first.in_blocks,
    )


# What does not fit


@pytest.fixture
def last_copy():
    return kernel_set(NAMES[-1])


TOKENS, CHOSEN, SHARES = mx.zeros((3, 64)), mx.zeros((3, 2), mx.uint32), mx.zeros((3, 2))
STACK = mx.zeros((4, 64, 64))
PACKED_STACK = PACKED.mapped(lambda part: mx.stack([part] * 4))
FEW_SCALES = replace(PACKED_STACK, scales=PACKED_STACK.scales[:3], biases=PACKED_STACK.scales[:3])


MISFITS = [
    ({"x": X}, "experts must be uint32 [T, K], and shares float32, for x of [T, E]"),
    ({"experts": CHOSEN[:2]}, "experts must be uint32 [T, K]"),
    ({"experts": CHOSEN.astype(mx.int32)}, "experts must be uint32 [T, K]"),
    ({"shares": SHARES.astype(mx.float16)}, "experts must be uint32 [T, K]"),
    ({"shares": SHARES[:, :1]}, "experts must be uint32 [T, K]"),
    ({"gate": W}, "a matrix must be [N, K] with K of 1 or more, not (64)"),
    ({"gate": STACK[:0]}, "a stack has one matrix or more, not (0,64,64)"),
    ({"gate": STACK[:, :32]}, "the experts' matrices do not fit x, or each other"),
    ({"down": STACK[:3]}, "the experts' matrices do not fit x, or each other"),
    ({"up": PACKED_STACK}, "matrices multiplied together must be packed alike"),
    ({"down": FEW_SCALES}, "scales must be [64, 64 / 32], not (3,64,2)"),
]


@pytest.mark.parametrize(("changed", "says"), MISFITS)
def test_experts_that_do_not_fit(last_copy, changed, says):
    given = {"x": TOKENS, "experts": CHOSEN, "shares": SHARES, "gate": STACK, "up": STACK, "down": STACK}
    refused(lambda: last_copy.expert_mlp(**given | changed), says)


@pytest.mark.parametrize("per_token", [0, 5])
def test_more_experts_than_there_are(last_copy, per_token):
    refused(lambda: last_copy.route(mx.zeros((3, 4)), per_token, True), "a token has 1 to N experts, not")


def test_an_expert_that_there_is_not_reads_no_other_memory(k):
    x, gate, down = mx.ones((1, 64)), mx.ones((2, 64, 64)), mx.stack([W, W + 1])
    got = [
        k.expert_mlp(x, mx.array([[n]], mx.uint32), mx.ones((1, 1)), gate, gate, down) for n in (1, 2**32 - 1)
    ]
    assert mx.array_equal(*got) and mx.all(got[0] > 0)
