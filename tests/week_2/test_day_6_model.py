"""Day 2.6: rows of different lengths through the model."""

import mlx.core as mx
import pytest
from tests.helpers import oracle
from tests.helpers.tolerance import F32, F32_MODEL, Tolerance, assert_close
from tests.helpers.toy import QWEN2, QWEN3, packed_model, random_array, random_tokens, toy_model

ANGLES = Tolerance(2e-4, 2e-4)  # of hundreds of radians in float32


@pytest.mark.task("2.6.1")
@pytest.mark.parametrize("traditional", [False, True])
@pytest.mark.parametrize("offsets", [[0, 0, 0], [3, 0, 17], [5]])
@pytest.mark.parametrize("L", [1, 4])
def test_rope_with_an_offset_for_each_row(llm, traditional, offsets, L):
    llm.BatchingKvCache(1)
    x = random_array(20, len(offsets), L, 3, 8)
    got = llm.RoPE(8, 32, traditional=traditional)(x, offsets)
    assert_close(got, oracle.rope(x, offsets, traditional=traditional), F32, legend="[B, L, H, D]")


@pytest.mark.task("2.6.1")
@pytest.mark.parametrize("offsets", [[1, 2], [1, 2, 3, 4], [1], [-1, 0, 0], [0, 7, 0]])
def test_rope_rejects_offsets_that_do_not_fit(llm, offsets):
    llm.BatchingKvCache(1)
    with pytest.raises(ValueError):
        llm.RoPE(4, 8)(mx.ones((3, 2, 1, 4)), offsets)


@pytest.mark.task("2.6.1")
@pytest.mark.parametrize("offsets", [[0, 700], [700, 0]], ids=["last-row-ahead", "first-row-ahead"])
def test_rope_knows_the_positions_of_the_row_that_is_furthest(llm, offsets):
    llm.BatchingKvCache(1)
    rope, x = llm.RoPE(8, 704), random_array(14, 2, 4, 1, 8)
    assert_close(rope(x, offsets), oracle.rope(x, offsets), ANGLES, legend="[B, L, H, D]")
    for outside in (offsets[0] or -1, offsets[1] or -1), [offset + bool(offset) for offset in offsets]:
        with pytest.raises(ValueError):
            rope(x, list(outside))


@pytest.mark.task("2.6.1")
@pytest.mark.parametrize("config", [QWEN3, QWEN2], ids=lambda config: config.model_type)
def test_model_decodes_rows_of_different_lengths_together(llm, config):
    model, lengths = toy_model(llm, config), [9, 1, 5]
    tokens = [random_tokens(30 + i, 1, length + 6) for i, length in enumerate(lengths)]
    batch = [llm.BatchingKvCache(3) for _ in range(config.num_hidden_layers)]
    for row, length in enumerate(lengths):
        cache = model.create_kv_cache()
        model(tokens[row][:, :length], 0, cache)
        for whole, layer in zip(batch, cache, strict=True):
            whole.add_request(layer)
    for step, size in ((0, 1), (1, 1), (2, 3)):
        starts = [length + step for length in lengths]
        new = mx.concatenate([t[:, s : s + size] for t, s in zip(tokens, starts, strict=True)])
        got = model(new, starts, batch, logits_to_keep=1)
        for row, start in enumerate(starts):
            want = model(tokens[row][:, : start + size])[:, -1:]
            assert_close(
                got[row : row + 1], want, F32_MODEL, legend="[B, 1, V]", what=f"step {step}, row {row}"
            )


@pytest.mark.task("2.6.1")
@pytest.mark.parametrize("odd_layer", [None, 0, 1])
def test_rows_of_different_lengths_on_the_kernels(llm, kernels_on, odd_layer):
    """In a checkpoint of mixed packings some layers can be fused, and others need the mask of the batch."""
    model, lengths = packed_model(llm, odd_layer), [9, 1, 70]
    tokens = [random_tokens(50 + i, 1, length + 3) for i, length in enumerate(lengths)]
    batch = [llm.BatchingKvCache(3) for _ in range(2)]
    for length, row in zip(lengths, tokens, strict=True):
        cache = model.create_kv_cache()
        model(row[:, :length], 0, cache)
        for whole, layer in zip(batch, cache, strict=True):
            whole.add_request(layer)
    for step in range(3):
        starts = [length + step for length in lengths]
        new = mx.concatenate([t[:, s : s + 1] for t, s in zip(tokens, starts, strict=True)])
        got = model(new, starts, batch, logits_to_keep=1)
        for row, start in enumerate(starts):
            want = model(tokens[row][:, : start + 1])[:, -1:]
            assert_close(
                got[row : row + 1], want, F32_MODEL, legend="[B, 1, V]", what=f"step {step}, row {row}"
            )


@pytest.mark.task("2.6.1")
def test_model_rejects_offsets_that_the_batch_does_not_have(llm):
    model = toy_model(llm)
    batch = [llm.BatchingKvCache(2) for _ in range(2)]
    for length in (4, 2):
        cache = model.create_kv_cache()
        model(random_tokens(length, 1, length), 0, cache)
        for whole, layer in zip(batch, cache, strict=True):
            whole.add_request(layer)
    with pytest.raises(ValueError):
        model(random_tokens(1, 2, 1), [2, 4], batch)
    assert model(random_tokens(1, 2, 1), [4, 2], batch).shape == (2, 1, 258)
