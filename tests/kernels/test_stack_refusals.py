"""What all layers as one operator refuse when they are built, or leave to the layers one by one."""

from dataclasses import replace

import mlx.core as mx
import pytest
from tests.kernels.conftest import NAMES, kernel_set
from tests.kernels.test_refusals import NORM, W, refused

from tiny_llm_lab.types import LayerWeights

# 64 wide, two heads of 32.
LAYER = LayerWeights(
    eps=1e-6,
    norm=NORM,
    qkv=[W, W, W],
    biases=[],
    query_norm=None,
    key_norm=None,
    out=W,
    mlp_norm=NORM,
    gate=W,
    up=W,
    down=W,
)
COS = mx.zeros((9, 16))
X = mx.zeros((2, 3, 64))


@pytest.fixture
def k():
    return kernel_set(NAMES[-1])


def storage(rows=2, room=8, dtype=mx.float32, layers=2):
    made = [[mx.zeros((rows, 2, room, 32), dtype) for _ in range(layers)] for _ in "kv"]
    mx.eval(made)
    return made


@pytest.mark.parametrize(
    ("layer", "says"),
    [
        (replace(LAYER, norm=NORM[:32]), "x has 32 columns but the matrix takes 64"),
        (replace(LAYER, qkv=[W, W]), "a layer has three matrices of heads"),
        (replace(LAYER, qkv=[W, W, W[:33]]), "a matrix of 33 rows has no whole heads of 32"),
        (replace(LAYER, biases=[None]), "1 biases for 3 matrices"),
        (replace(LAYER, query_norm=NORM[:32]), "queries and keys have both a norm, or none"),
        (replace(LAYER, out=W[:, :32]), "the output projection does not fit the heads"),
        (replace(LAYER, has_gate=True), "the output projection does not fit the heads"),
        (replace(LAYER, up=W[:32]), "the matrices do not fit x, or each other"),
        (replace(LAYER, mlp_norm=NORM[:32]), "the norm's weight must be"),
    ],
)
def test_layers(k, layer, says):
    refused(lambda: k.layer_stack([LAYER, layer], 32, False), says)


def test_no_layers(k):
    refused(lambda: k.layer_stack([], 32, False), "a stack has one layer or more")


def test_rows(k):
    stack = k.layer_stack([LAYER, LAYER], 32, False)

    def call(x=X, offsets=2, cos=COS, stored=None, kept=3, rows=None):
        return stack.over_rows(x, offsets, cos, cos, stored or storage(), 0.1, kept, rows)

    refused(lambda: call(X[0]), "x must be [B, L, 64], not (3,64)")
    refused(lambda: call(X[..., :32]), "x must be [B, L, 64], not (2,3,32)")
    refused(lambda: call(X.astype(mx.int32), stored=storage(dtype=mx.int32)), "x must be float32")
    refused(lambda: call(kept=4), "a stack keeps 0 to L tokens")
    refused(lambda: call(rows=[2]), "rows must be 0 to 1")
    refused(lambda: call(rows=[-1]), "rows must be 0 to 1")
    refused(lambda: call(cos=COS[:, :8]), "the tables do not fit the heads")
    refused(lambda: call(cos=mx.zeros((9, 17))), "the tables do not fit the heads")
    refused(lambda: call(cos=COS[:4]), "positions must be 0 to 3")
    refused(lambda: call(offsets=[2]), "1 numbers for 2 rows")
    refused(lambda: call(offsets=6), "a row of storage has room for 8 tokens")
    refused(lambda: call(offsets=[2, -1]), "a row of storage has room for 8 tokens")
    for other in (storage(rows=1), storage(dtype=mx.bfloat16)):
        refused(lambda other=other: call(stored=other), "has no rows for x of (2,3,64)")
    refused(lambda: call(stored=storage(layers=1)), "every layer with attention has its own storage")
    refused(lambda: call(stored=storage()[:1]), "rows have keys and values")


def test_new_rows(k):
    stack = k.layer_stack([LAYER, LAYER], 32, False)

    def call(x=X, room=8, kept=3):
        return stack.over_new_rows(x, COS, COS, room, 0.1, kept, None)

    made, stored, states = call()
    assert states == []
    assert made.shape == X.shape and [[a.shape for a in part] for part in stored] == [[(2, 2, 8, 32)] * 2] * 2
    refused(lambda: call(X[..., :32]), "x must be [B, L, 64], not (2,3,32)")
    refused(lambda: call(room=2), "room for 2 of 3 tokens")
    refused(lambda: call(kept=4), "a stack keeps 0 to L tokens")


def test_storage_that_is_not_free_is_left_to_the_layers(k):
    stack = k.layer_stack([LAYER, LAYER], 32, False)
    viewed, lazy, turned = storage(), storage(), storage()
    view = viewed[1][1][:, :, :4]
    mx.eval(view)
    lazy[0][1] = lazy[0][1] + 1
    turned[1][0] = mx.zeros((2, 8, 2, 32)).transpose(0, 2, 1, 3)
    mx.eval(turned)
    for stored, is_taken in ((viewed, False), (lazy, False), (turned, False), (storage(), True)):
        made = stack.over_rows(X, 2, COS, COS, stored, 0.1, 3, None)
        assert (made is not None) == is_taken
    del view
    assert stack.over_rows(X, 2, COS, COS, viewed, 0.1, 3, None) is not None


def test_pages(k):
    stack, x = k.layer_stack([LAYER, LAYER], 32, False), X[:, :1]

    def call(
        x=x, offsets=(2, 4), stored=None, slots=(1, 9), starts=(0, 1, 2), lengths=(3, 5), tables=((0,), (1,))
    ):
        where = mx.array(slots, mx.int32), list(starts), list(lengths), mx.array(tables, mx.int32)
        stored = stored or storage()
        return stack.over_pages(x, list(offsets), COS, COS, stored, *where, 0.1, 1, None)

    assert call() is not None
    refused(lambda: call(X), "packed x must be [T, 1, E], not (2,3,64)")
    refused(lambda: call(slots=(1, 16)), "slots must be 0 to 15, not 16")
    refused(lambda: call(slots=(1,)), "1 slots for 2 rows")
    refused(lambda: call(tables=((0,), (2,))), "blocks must be 0 to 1, not 2")
    refused(lambda: call(starts=(0, 1)), "starts must lead from 0 to the number of rows")
    refused(
        lambda: call(lengths=(3, 9)), "a request's length must be between its rows and what its blocks hold"
    )
    refused(lambda: call(stored=storage(dtype=mx.bfloat16)), "of x's dtype or int8")
    refused(lambda: call(stored=storage(dtype=mx.int8)), "of x's dtype or int8")
    refused(lambda: call(stored=storage() + storage()), "pools of int8 come with scales")
    refused(lambda: call(stored=storage()[:1]), "pools are keys and values, or those and their scales")
    uneven = storage()
    uneven[0][1] = mx.zeros((3, 2, 8, 32))
    refused(lambda: call(stored=uneven), "the pools of the layers differ")
