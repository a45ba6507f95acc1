"""Day 2.6: rows of different lengths through the model."""

import mlx.core as mx
import pytest
from tests.helpers.tolerance import F32_MODEL, assert_close
from tests.helpers.toy import QWEN2, QWEN3, packed_model, random_tokens, toy_model

from tiny_llm_lab.types import Wanted


def assert_rows_as_alone(llm, model, lengths, sizes):
    """Rows of `lengths` tokens that go on together, by `sizes` tokens a step, have their own logits."""
    tokens = [random_tokens(30 + i, 1, length + sum(sizes)) for i, length in enumerate(lengths)]
    batch = [llm.BatchingKvCache(len(lengths)) for _ in range(model.config.num_hidden_layers)]
    for row, length in zip(tokens, lengths, strict=True):
        cache = model.create_kv_cache()
        model(row[:, :length], 0, cache)
        for whole, layer in zip(batch, cache, strict=True):
            whole.add_request(layer)
    for step, size in enumerate(sizes):
        starts = [length + sum(sizes[:step]) for length in lengths]
        new = mx.concatenate([t[:, s : s + size] for t, s in zip(tokens, starts, strict=True)])
        got = model(new, starts, batch, wanted=Wanted(last=1))
        for row, start in enumerate(starts):
            want = model(tokens[row][:, : start + size])[:, -1:]
            what = f"step {step}, row {row}"
            assert_close(got[row : row + 1], want, F32_MODEL, legend="[B, 1, V]", what=what)


@pytest.mark.task("2.6.1")
@pytest.mark.parametrize("config", [QWEN3, QWEN2], ids=lambda config: config.model_type)
def test_model_decodes_rows_of_different_lengths_together(llm, config):
    assert_rows_as_alone(llm, toy_model(llm, config), [9, 1, 5], [1, 1, 3])


@pytest.mark.task("2.6.1")
@pytest.mark.parametrize("odd_layer", [None, 0, 1])
def test_rows_of_different_lengths_on_the_kernels(llm, kernels_on, odd_layer):
    assert_rows_as_alone(llm, packed_model(llm, odd_layer), [9, 1, 70], [1, 1, 1])


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
