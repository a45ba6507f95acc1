"""What stands beside a row, and how many threads there are, does not change one bit of its result.

Equality holds within one compiled copy of the kernels; different instruction sets may round differently.
"""

import random
from dataclasses import replace
from itertools import product

import mlx.core as mx
import pytest
from tests.helpers.matrices import as_stored, assert_same_bits, evaluated, matrix, packed, quantized
from tests.helpers.toy import random_array, random_tokens
from tests.kernels.conftest import NAMES, kernel_set

from tiny_llm_lab import load_checkpoint
from tiny_llm_lab.runtime import native
from tiny_llm_lab.runtime.models.weights.activation_bits import with_activation_bits
from tiny_llm_lab.types import Wanted

OTHERS = (2, 7, 8, 9, 64, 129)
# All that tiles of products are made of, and more than a block of 512 rows.
OTHERS_OF_PRODUCTS = (*range(20), 512, 519)
# Dense, and packed for exact products and for those of bytes: bits, group and activation bits.
formats = pytest.mark.parametrize(
    ("bits", "group", "activation_bits"), [(0, 64, 16), *product((4, 8), (32, 64, 128), (16, 8))]
)
PACKAGE = "tiny_llm_ref"


@pytest.fixture(params=NAMES)
def copy(request):
    return kernel_set(request.param)


def assert_alone_as_in_company(threads, run, company=OTHERS):
    """`run(first, last)` gives the results of rows first to last - 1, [rows, ...]."""
    threads(1)
    rows = company[-1] + 1
    alone = [run(i, i + 1) for i in range(rows)]
    mx.eval(alone)
    for num in (1, 2):
        threads(num)
        for others in company:
            for first in {0, (rows - others - 1) // 2, rows - others - 1}:
                last = first + others + 1
                want = mx.concatenate(alone[first:last])
                assert_same_bits(run(first, last), want, f"{others} others from {first} on, {num} threads")


@formats
def test_linear(copy, threads, dtype, bits, group, activation_bits):
    K = 8192 // (bits or 16) + group  # more than a panel has
    (x,) = evaluated(random_array(1, 520, K, dtype=dtype))
    bias, weights = random_array(2, 37), as_stored(matrix(3, 37, K, bits, group, dtype, activation_bits))
    run = lambda a, b: mx.stack(copy.linear(x[a:b], weights, [bias, bias]), axis=1)  # noqa: E731
    assert_alone_as_in_company(threads, run, OTHERS_OF_PRODUCTS)
    assert_same_bits(*run(0, 20).swapaxes(0, 1), "by rows and in blocks")


@pytest.mark.parametrize("stored", [mx.float32, mx.bfloat16], ids=str)
@pytest.mark.parametrize("K", [1, 7, 1100])
def test_linear_with_a_rest(copy, threads, stored, K):
    (x,) = evaluated(random_array(1, 130, K))
    w = random_array(2, 5, K, dtype=stored)
    assert_alone_as_in_company(threads, lambda a, b: copy.linear(x[a:b], [w])[0])


@formats
def test_a_column_does_not_depend_on_its_neighbours(copy, threads, dtype, bits, group, activation_bits):
    threads(2)
    x, w = random_array(1, 11, 384, dtype=dtype), matrix(2, 150, 384, bits, group, dtype, activation_bits)
    for rows in (1, 2, 3, 11):
        whole, same = copy.linear(x[:rows], as_stored(w))
        assert_same_bits(same, whole, f"{rows} rows, by rows and in blocks")
        for columns in (slice(1), slice(3, 20), slice(64, 150), slice(149, 150)):
            part = w.mapped(lambda array, part=columns: array[part]) if bits else w[columns]
            assert_same_bits(copy.linear(x[:rows], [part])[0], whole[:, columns], f"{columns}, {rows} rows")


@pytest.mark.parametrize("step", [1, 2, 3, 4])
def test_steps_of_the_ladder(copy, threads, step):
    (x,) = evaluated(random_array(1, 130, 128))
    w = packed(2, 70, 128, 4, 64)
    rows = 130 if step > 2 else 66
    run = lambda a, b: copy.quantized_matmul_step(step, x[a:b], w)  # noqa: E731
    threads(1)
    want = mx.concatenate([run(i, i + 1) for i in range(rows)])
    for num in (1, 2):
        threads(num)
        assert_same_bits(run(0, rows), want, f"step {step}, {num} threads")


@pytest.mark.parametrize(("H", "G", "D"), [(2, 2, 64), (4, 2, 80), (8, 2, 64), (14, 2, 128)])
def test_attention_of_a_token_in_a_chunk(copy, threads, dtype, H, G, D):
    stored, rows = 200, 130
    q, key, value = evaluated(
        random_array(1, 1, H, rows, D, dtype=dtype),
        *(random_array(i, 1, G, stored, D, dtype=dtype) for i in (2, 3)),
    )

    def run(first, last):
        end = stored - rows + last
        out = copy.attention(q[:, :, first:last], key, value, end, True, D**-0.5)
        return out[0].swapaxes(0, 1)

    assert_alone_as_in_company(threads, run)


def test_attention_of_a_row_in_a_batch(copy, threads, dtype):
    B = 130
    lengths = [5 + 7 * i % 66 for i in range(B)]
    q, key, value = evaluated(
        random_array(1, B, 4, 3, 64, dtype=dtype),
        *(random_array(i, B, 2, 70, 64, dtype=dtype) for i in (2, 3)),
    )

    def run(a, b):
        stored = max(lengths[a:b])  # as far as the longest row of the batch
        return copy.attention(q[a:b], key[a:b, :, :stored], value[a:b, :, :stored], lengths[a:b], True, 0.125)

    assert_alone_as_in_company(threads, run)


@pytest.mark.parametrize("width", [65, 2000])
def test_rows_of_numbers(copy, threads, dtype, width):
    x, y = evaluated(*(random_array(i, 130, width, dtype=dtype) for i in (1, 2)))
    weight = random_array(3, width, dtype=dtype)
    operators = {
        "rms_norm": lambda a, b: copy.rms_norm(x[a:b], weight, 1e-6)[1],
        "rms_norm of a sum": lambda a, b: mx.stack(copy.rms_norm(x[a:b], weight, 1e-6, y[a:b]), axis=1),
        "swiglu": lambda a, b: copy.swiglu(x[a:b], y[a:b]),
        "sigmoid_gate": lambda a, b: copy.sigmoid_gate(x[a:b], y[a:b]),
        "a gate a row": lambda a, b: copy.sigmoid_gate(x[a:b], y[a:b, :1]),
        "argmax": lambda a, b: copy.argmax(x[a:b]),
    }
    for run in operators.values():
        assert_alone_as_in_company(threads, run)


def test_rope_and_embedding(copy, threads, dtype):
    (x,) = evaluated(random_array(1, 130, 2, 14, 80, dtype=dtype))
    cos, sin = evaluated(random_array(2, 300, 40), random_array(3, 300, 40))
    weight, tokens = random_array(4, 80, dtype=dtype), random_tokens(5, 130)
    w = packed(6, 256, 192, dtype=dtype)
    offsets = list(range(0, 260, 2))
    for norm in (None, weight):
        assert_alone_as_in_company(
            threads, lambda a, b, norm=norm: copy.rope(x[a:b], offsets[a:b], cos, sin, False, norm, 1e-6)
        )
    some = evaluated(cos[:, :16], sin[:, :16])
    assert_alone_as_in_company(
        threads, lambda a, b: copy.rope(x[a:b], offsets[a:b], *some, False, weight, 1e-6)
    )
    assert_alone_as_in_company(threads, lambda a, b: copy.embedding(tokens[a:b], w))


@pytest.fixture
def kernels_on(request, monkeypatch, threads):
    """The reference runs on one copy of the kernels, with two threads."""
    monkeypatch.setenv(native.VARIABLE, "cpp")
    monkeypatch.setattr(native.RUNTIME, "_sets", {PACKAGE: kernel_set(request.param)})
    threads(2)
    return request.param


on_every_copy = pytest.mark.parametrize("kernels_on", NAMES, indirect=True)
in_all_numbers = pytest.mark.parametrize("model_dtype", ["float32", "bfloat16", "bytes"])


def stored_dtype(model_dtype):
    """The dtype of a model's keys and values."""
    return mx.bfloat16 if model_dtype == "bytes" else getattr(mx, model_dtype)


def model_of(llm, dtype):
    """The default model; "bytes" are products of bfloat16, rounded to bytes, and weights of 4 bits."""
    checkpoint = load_checkpoint("default", dtype="bfloat16" if dtype == "bytes" else dtype)
    if dtype == "bytes":
        packed = {name: quantized(w, 4, 64) if w.ndim == 2 else w for name, w in checkpoint.weights.items()}
        checkpoint = replace(checkpoint, weights=with_activation_bits(packed, 8))
    return llm.build_model(checkpoint), checkpoint.tokenizer


@on_every_copy
@in_all_numbers
def test_logits_over_chunks(llm, kernels_on, model_dtype):
    model, tokenizer = model_of(llm, model_dtype)
    tokens = mx.array([tokenizer.encode("The river rises in the hills. " * 40)[:120]])
    want = model(tokens)
    rng = random.Random(1)
    ragged = [rng.randint(1, 40) for _ in range(60)]
    for chunks in ([1] * 120, [7] * 18, [32] * 4, [64, 56], [1, 119], [119, 1], ragged):
        cache, parts, offset = model.create_kv_cache(), [], 0
        for size in chunks:
            if part := tokens[:, offset : offset + size].size:
                parts.append(model(tokens[:, offset : offset + part], offset, cache))
                offset += part
        assert_same_bits(mx.concatenate(parts, axis=1), want, f"chunks of {chunks[:3]} ...")


@on_every_copy
@in_all_numbers
def test_logits_over_batches(llm, kernels_on, threads, model_dtype):
    model, tokenizer = model_of(llm, model_dtype)
    ids = mx.array(tokenizer.encode("Seven boats lie at the quay, and none of them is blue. " * 40)[:300])
    rows = mx.stack([ids[17 * i : 17 * i + 40] for i in range(9)])
    want = mx.concatenate([model(rows[i : i + 1]) for i in range(9)])
    for num in (1, 2):
        threads(num)
        for picked in ([0, 1], [8, 3, 5], list(range(9)), [4] * 3):
            got = model(rows[mx.array(picked)])
            assert_same_bits(got, want[mx.array(picked)], f"rows {picked}, {num} threads")
        last = model(rows, wanted=Wanted(last=1))
        assert_same_bits(last, want[:, -1:], f"only the last logits, {num} threads")
