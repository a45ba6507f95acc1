"""What an operator cannot do is refused in one line when it is built: nothing runs, so no task fails."""

import re
from dataclasses import replace

import mlx.core as mx
import pytest
from tests.helpers.matrices import packed
from tests.kernels.conftest import NAMES, kernel_set

from tiny_llm_lab.runtime.native import in_blocks
from tiny_llm_lab.types import LayerWeights

X = mx.zeros((2, 3, 64))
INTS = mx.zeros((2, 3, 64), mx.int32)
W, NORM = mx.zeros((64, 64)), mx.zeros(64)
PACKED = packed(1, 64, 64, 4, 32)
BLOCKS, DENSE = in_blocks(PACKED), in_blocks(W)
NO_FIT = "the matrices do not fit x, or each other"
NO_FLOAT = "must be float32, float16 or bfloat16, not int32: use astype"


@pytest.fixture
def k():
    """Every copy of the kernels is refused the same: the binding does it."""
    return kernel_set(NAMES[-1])


def refused(call, says):
    with pytest.raises(ValueError, match=f"^[^\n]*{re.escape(says)}[^\n]*$"):
        call()


MATRICES = {
    "of integers": (W.astype(mx.int32), f"a matrix {NO_FLOAT}"),
    "with one dimension": (NORM, "a matrix must be [N, K] with K of 1 or more, not (64)"),
    "with three": (W[None], "a matrix must be [N, K]"),
    "without columns": (W[:, :0], "a matrix must be [N, K]"),
    "in groups of 16": (replace(PACKED, group_size=16), "group_size must be 32, 64 or 128, not 16: deq"),
    "of 3 bits": (replace(PACKED, bits=3), "bits must be 4 or 8, not 3: dequantize"),
    "of words of 0 bits": (replace(PACKED, bits=0), "a matrix in blocks must be float32"),
    "dense, in rows for blocks": (replace(DENSE, weight=W, in_blocks=64), "must be made by in_blocks"),
    "dense, in blocks for rows": (replace(DENSE, in_blocks=0), "must be made by in_blocks"),
    "dense, in blocks of more rows": (replace(DENSE, in_blocks=65), "must be made by in_blocks"),
    "dense, in blocks without a group": (replace(DENSE, weight=DENSE.weight[:, :63]), "must be made by"),
    "dense, in blocks of 8": (replace(DENSE, weight=DENSE.weight[..., :8]), "must be made by in_blocks"),
    "of float words": (replace(PACKED, weight=W[:, :8]), "packed weights must be uint32 [N, K * bits / 32]"),
    "of flat words": (replace(PACKED, weight=PACKED.weight[0]), "packed weights must be uint32"),
    "of words in wrong groups": (replace(PACKED, group_size=64), "scales must be [64, 64 / 64], not (64,2)"),
    "of half a group": (replace(PACKED, weight=PACKED.weight[:, :6]), "scales must be [64, 48 / 32], not"),
    "with scales of integers": (replace(PACKED, scales=PACKED.scales.astype(mx.int32)), f"scales {NO_FLOAT}"),
    "with other biases": (replace(PACKED, biases=PACKED.biases.astype(mx.float16)), "scales and biases must"),
    "with few biases": (replace(PACKED, biases=PACKED.biases[:1]), "scales and biases must be alike"),
    "for activations of 4 bits": (replace(PACKED, activation_bits=4), "activation_bits must be 8 or 16, not"),
    "in blocks of more rows": (replace(BLOCKS, in_blocks=65), "packed weights must be uint32"),
    "in blocks of less than no rows": (replace(BLOCKS, in_blocks=-64), "packed weights must be uint32"),
    "in rows instead of blocks": (replace(PACKED, in_blocks=64), "packed weights must be uint32"),
    "in blocks instead of rows": (replace(BLOCKS, in_blocks=0), "packed weights must be uint32"),
    "in blocks of 8": (BLOCKS.mapped(lambda part: part[..., :8]), "packed weights must be uint32"),
    "in blocks with scales in rows": (replace(PACKED, weight=BLOCKS.weight, in_blocks=64), "scales must be"),
    "without scales": (replace(PACKED, scales=None, biases=None), "scales must be mx.array"),
}


USES = ["linear", "second of linear", "step", "qkv_rope", "attn_out_mlp", "embedding"]


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("kind", MATRICES)
def test_a_matrix(k, kind, use):
    matrix, says = MATRICES[kind]
    tables = mx.zeros((9, 32)), mx.zeros((9, 32))
    calls = {
        "linear": lambda: k.linear(X, [matrix]),
        "second of linear": lambda: k.linear(X, [W, matrix]),
        "step": lambda: k.quantized_matmul_step(1, X[0], matrix),
        "qkv_rope": lambda: k.qkv_rope(X, NORM, 1e-6, [W, W, matrix], [], None, None, *tables, False, 0, 3),
        "attn_out_mlp": lambda: k.attn_out_mlp(X, X, W, NORM, 1e-6, W, W, matrix),
        "embedding": lambda: k.embedding(mx.array([0]), matrix),
    }
    refused(calls[use], says)


IN_8_BITS = replace(PACKED, activation_bits=8)
PRODUCTS = {
    "x of integers": (lambda k: k.linear(INTS, [W]), f"x {NO_FLOAT}"),
    "x without dimensions": (lambda k: k.linear(mx.array(1.0), [W]), "x must have rows of one number"),
    "x without columns": (lambda k: k.linear(X[..., :0], [W]), "x must have rows of one number or more"),
    "x of another width": (lambda k: k.linear(X, [mx.zeros((8, 65))]), "64 columns but the matrix takes 65"),
    "no matrix": (lambda k: k.linear(X, []), "linear takes one matrix or more"),
    "activations of two kinds": (lambda k: k.linear(X, [PACKED, IN_8_BITS]), "must be packed alike"),
    "a packed and a dense matrix": (lambda k: k.linear(X, [PACKED, W]), "must be packed alike"),
    "a bias of integers": (lambda k: k.linear(X, [W], [NORM.astype(mx.int32)]), f"a bias {NO_FLOAT}"),
    "a short bias": (lambda k: k.linear(X, [W], [NORM[:63]]), "a bias must be [64], not (63)"),
    "a bias of two dimensions": (lambda k: k.linear(X, [W], [NORM[None]]), "a bias must be [64], not (1,64)"),
    "a bias that is a number": (lambda k: k.linear(X, [W], [1.0]), "a bias must be mx.array"),
    "too few biases": (lambda k: k.linear(X, [W, W], [None]), "1 biases for 2 matrices: give None"),
    "step 5": (lambda k: k.quantized_matmul_step(5, X, PACKED), "steps 1 to 4 take packed weights"),
    "a step on a dense matrix": (lambda k: k.quantized_matmul_step(1, X, W), "steps 1 to 4 take packed"),
    "a step on blocks": (lambda k: k.quantized_matmul_step(1, X, BLOCKS), "packed weights in rows"),
    "a step on integers": (lambda k: k.quantized_matmul_step(1, INTS, PACKED), f"x {NO_FLOAT}"),
    "tokens of floats": (
        lambda k: k.embedding(NORM, W),
        "tokens must be whole numbers, not float32: use astype",
    ),
}


@pytest.mark.parametrize("kind", PRODUCTS)
def test_a_product(k, kind):
    call, says = PRODUCTS[kind]
    refused(lambda: call(k), says)


ROWS = {
    "rms_norm": lambda k, x: k.rms_norm(x, NORM, 1e-6),
    "swiglu": lambda k, x: k.swiglu(x, x),
    "sigmoid_gate": lambda k, x: k.sigmoid_gate(x, x),
    "argmax": lambda k, x: k.argmax(x),
    "quantize_rows": lambda k, x: k.quantize_rows(x),
    "linear": lambda k, x: k.linear(x, [W]),
    "attn_out_mlp": lambda k, x: k.attn_out_mlp(x, X, W, NORM, 1e-6, W, W, W),
    "the attended of rest": lambda k, x: k.attn_out_mlp(X, x, W, NORM, 1e-6, W, W, W),
}


@pytest.mark.parametrize("name", ROWS)
def test_rows(k, name):
    mx.eval(ROWS[name](k, X))
    refused(lambda: ROWS[name](k, INTS), NO_FLOAT)
    refused(lambda: ROWS[name](k, X[..., :0]), "must have rows of one number or more, not the shape (2,3,0)")
    refused(lambda: ROWS[name](k, mx.array(1.0)), "must have rows of one number or more")


NORMS = {
    "of integers": (NORM.astype(mx.int32), NO_FLOAT),
    "too short": (NORM[:63], "must be [64], not (63)"),
    "of two dimensions": (NORM[None], "must be [64], not (1,64)"),
}


@pytest.mark.parametrize("kind", NORMS)
def test_the_weight_of_a_norm(k, kind):
    norm, says = NORMS[kind]
    tables = mx.zeros((9, 32)), mx.zeros((9, 32))

    def heads(norm=NORM, queries=None, keys=None):
        return k.qkv_rope(X, norm, 1e-6, [W, W, W], [], queries, keys, *tables, False, 0, 3)

    mx.eval(heads(), heads(NORM, NORM, NORM))
    refused(lambda: k.rms_norm(X, norm, 1e-6), says)
    refused(lambda: k.rope(X[:, :, None], 0, *tables, False, norm, 1e-6), says)
    refused(lambda: k.attn_out_mlp(X, X, W, norm, 1e-6, W, W, W), says)
    refused(lambda: heads(norm), says)
    refused(lambda: heads(NORM, norm, NORM), says)
    refused(lambda: heads(NORM, NORM, norm), says)
    refused(lambda: heads(NORM, NORM), "queries and keys have both a norm, or none")


def test_what_must_be_alike(k):
    half = X.astype(mx.float16)
    for other in (half, X[:1], X[..., :32]):
        refused(lambda other=other: k.rms_norm(X, NORM, 1e-6, other), "x and delta must be alike")
        refused(lambda other=other: k.swiglu(X, other), "gate and up must be alike")
    for other in (X[:, :1], X[..., :32]):
        refused(lambda other=other: k.sigmoid_gate(X, other), "the gate must be like x, or a number a row")


def test_heads_and_rest_of_a_layer(k):
    cos = mx.zeros((9, 32))

    def heads(x=X, weights=(W, W, W), cos=cos, kept=3):
        return k.qkv_rope(x, NORM, 1e-6, list(weights), [], None, None, cos, cos, False, 0, kept)

    refused(lambda: heads(X[0]), "x must be [B, L, E], not (3,64)")
    refused(lambda: heads(INTS), f"x {NO_FLOAT}")
    refused(lambda: heads(weights=(W, W)), "qkv_rope takes three matrices")
    refused(lambda: heads(kept=4), "keeps 0 to L tokens")
    refused(lambda: heads(weights=(W, W, W[:63])), "a matrix of 63 rows has no whole heads of 64")
    refused(lambda: heads(cos=cos[:, :0]), "a matrix of 64 rows has no whole heads of 0")
    refused(lambda: heads(cos=cos[0]), "the tables must be float32")
    refused(lambda: heads(cos=cos[:2]), "positions must be 0 to 1")
    refused(lambda: k.attn_out_mlp(X, X[:1], W, NORM, 1e-6, W, W, W), NO_FIT)
    refused(lambda: k.attn_out_mlp(X, X, W, NORM, 1e-6, W, W[:32], W), NO_FIT)


def test_rotations(k):
    heads, cos = X[:, :, None], mx.zeros((9, 32))
    refused(lambda: k.rope(INTS[:, :, None], 0, cos, cos), f"x {NO_FLOAT}")
    refused(lambda: k.rope(X, 0, cos, cos), "the tables do not fit the heads")
    refused(lambda: k.rope(heads, 0, mx.zeros((9, 33)), cos), "the tables do not fit the heads")
    refused(lambda: k.rope(heads, 0, cos[:, :31], cos), "the tables must be float32, and alike")
    refused(lambda: k.rope(heads, 2**31 - 1, cos, cos), "positions must be 0 to 8")


def attend(k, q, key, value):
    return k.attention(q, key, value, 5, True, 1.0)


def attend_pages(k, q, key, value):
    q = q[0].transpose(1, 0, 2)[:, :, None]
    return k.paged_attention(q, key, value, [0, 2], [3], mx.array([[0]], mx.int32), 1.0)


@pytest.mark.parametrize("call", [attend, attend_pages])
def test_attention(k, call):
    q, stored = mx.zeros((1, 24, 2, 8)), mx.zeros((1, 1, 5, 8))
    mx.eval(call(k, q, stored, stored), call(k, q.astype(mx.float16), stored, stored))
    refused(lambda: call(k, q.astype(mx.int32), stored, stored), f"the query {NO_FLOAT}")
    refused(lambda: call(k, q, stored, stored.astype(mx.float16)), "key and value must be alike")
    numbers = stored.astype(mx.int32)
    refused(lambda: call(k, q, numbers, numbers), NO_FLOAT)


def test_attention_over_rows_of_8_bits(k):
    q, numbers = mx.zeros((1, 2, 2, 8)), mx.zeros((1, 2, 5, 8), mx.int8)
    refused(
        lambda: attend(k, q, numbers, numbers), "key and value must be float32, float16 or bfloat16, not int8"
    )


def test_what_is_stored(k):
    room, new = mx.zeros((2, 2, 9, 8), mx.int64), mx.zeros((1, 2, 3, 8), mx.int64)
    refused(lambda: k.append(room, new, 0), "no kernel reads int64: use astype")
    refused(lambda: k.append(room.astype(mx.float32), new, 0), "the added rows do not fit the stored ones")
    wide, added = room.astype(mx.float32), new.astype(mx.float32)
    refused(lambda: k.append(wide, added, 2**31 - 1), "the added rows do not fit behind the stored ones")


# All layers as one operator

# 64 wide, two heads of 32.
HEADS = {"norm": NORM, "qkv": [W, W, W], "biases": [], "query_norm": None, "key_norm": None, "out": W}
LAYER = LayerWeights(eps=1e-6, **HEADS, mlp_norm=NORM, gate=W, up=W, down=W)
COS = mx.zeros((9, 16))


def storage(rows=2, room=8, dtype=mx.float32, layers=2):
    made = [[mx.zeros((rows, 2, room, 32), dtype) for _ in range(layers)] for _ in "kv"]
    mx.eval(made)
    return made


LAYERS = [
    (replace(LAYER, norm=NORM[:32]), "x has 32 columns but the matrix takes 64"),
    (replace(LAYER, qkv=[W, W]), "a layer has three matrices of heads"),
    (replace(LAYER, qkv=[W, W, W[:33]]), "a matrix of 33 rows has no whole heads of 32"),
    (replace(LAYER, biases=[None]), "1 biases for 3 matrices"),
    (replace(LAYER, query_norm=NORM[:32]), "queries and keys have both a norm, or none"),
    (replace(LAYER, out=W[:, :32]), "the output projection does not fit the heads"),
    (replace(LAYER, has_gate=True), "the output projection does not fit the heads"),
    (replace(LAYER, up=W[:32]), NO_FIT),
    (replace(LAYER, mlp_norm=NORM[:32]), "the norm's weight must be"),
]


@pytest.mark.parametrize(("layer", "says"), LAYERS)
def test_layers(k, layer, says):
    refused(lambda: k.layer_stack([LAYER, layer], 32, False), says)


def test_no_layers(k):
    refused(lambda: k.layer_stack([], 32, False), "a stack has one layer or more")


def test_rows_of_a_stack(k):
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
