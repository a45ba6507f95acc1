"""Day 4.3: a hybrid on several ranks, whose parts add up to the whole."""

import mlx.core as mx
import pytest
from tests.helpers.tolerance import F32_MODEL, as_float64, assert_close
from tests.helpers.toy import random_array

from tiny_llm_lab import load_checkpoint


def outputs_of(model, number, x):
    """What a layer's mixer adds to x, and what its feed-forward adds to x alone."""
    layer = model.layers[number]
    mixed = layer.mixer(x, [0, 0], layer.mixer.create_cache())
    projected = model.ops.linear(mixed, [layer.mixer.weights.out])[0]
    return projected, layer.rest(x, mx.zeros_like(mixed)) - x


@pytest.mark.task("4.3.7")
@pytest.mark.parametrize(
    "name",
    [
        "random:qwen3.5-shrunk",
        "random:qwen3.5-moe-shrunk",
        "random:qwen3-next-shrunk",
        # Packed in groups of 32: a rank has 2 of 4 value heads of 32 numbers.
        "random:qwen3.5-shrunk,bits=4,group=32,value_dim=32",
    ],
)
def test_the_parts_of_all_ranks_sum_up_to_the_whole(llm, name):
    checkpoint, x = load_checkpoint(name, dtype="float32"), random_array(12, 2, 9, 64)
    shards = [checkpoint, *(llm.shard_checkpoint(checkpoint, each, 2) for each in range(2))]
    models = [llm.Qwen(each.config, each.weights, llm.ArrayOps()) for each in shards]
    for i in range(2):  # a delta net, and attention
        made = [outputs_of(model, i, x) for model in models]
        for what, want, *others in zip(("mixer", "feed-forward"), *made, strict=True):
            assert_close(sum(map(as_float64, others)), want, F32_MODEL, what=f"{what} of layer {i}")
