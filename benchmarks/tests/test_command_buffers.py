"""Command buffers of a step on Metal, by MLX's rules: enough to free the pools, few enough to run ahead."""

import os

import mlx.core as mx
import pytest

from benchmarks.measurements import command_buffers
from tiny_llm_lab.runtime.models.loading import LIMITS, BufferLimits, set_buffer_limits

_SET = {"MLX_MAX_OPS_PER_BUFFER": "40", "MLX_MAX_MB_PER_BUFFER": "200"}


@pytest.mark.parametrize("own_kernel", [False, True], ids=["gathered", "own kernel"])
@pytest.mark.parametrize("streams", command_buffers.STREAMS)
@pytest.mark.parametrize("model", command_buffers.MODELS)
def test_a_step_has_14_to_40_buffers(model, streams, own_kernel):
    graph = command_buffers.step_graph(model, streams, own_kernel)
    assert 14 <= command_buffers.num_buffers(graph, LIMITS) <= 40
    # By MLX's own limits nearly every touch of a pool ends one; a hybrid has few layers with pools.
    least = 20 if "qwen3.5" in model else 41
    assert all(
        command_buffers.num_buffers(graph, limits) >= least for limits in command_buffers.MLX_LIMITS.values()
    )


def test_a_buffer_ends_above_the_number_of_operators():
    graph = command_buffers.traced(lambda x: [mx.exp(mx.exp(mx.exp(mx.exp(mx.exp(x)))))], mx.zeros((8,)))
    assert [command_buffers.num_buffers(graph, BufferLimits(ops, 40)) for ops in (1, 2, 4, 5)] == [3, 2, 1, 1]


def test_an_array_counts_once_a_buffer_and_its_views_are_the_array():
    pool, rows = mx.zeros((8, 2**20)), mx.zeros((2, 2**20))

    def store_and_read(pool, rows):
        pool[mx.array([1, 2])] = rows
        return [mx.sum(pool.reshape(-1)), mx.sum(pool.T), mx.max(pool)]

    graph = command_buffers.traced(store_and_read, pool, rows)
    assert command_buffers.num_buffers(graph, BufferLimits(40, 10)) == 1  # 8 of the pool and 2 of the rows
    assert (
        command_buffers.num_buffers(graph, BufferLimits(40, 9)) == 2
    )  # ends when both were touched; then the pool counts again
    assert command_buffers.num_buffers(graph, BufferLimits(40, 7)) == 4


@pytest.mark.parametrize("is_metal", [True, False])
def test_the_limits_are_set_on_metal_alone_and_a_users_own_stay(monkeypatch, is_metal):
    monkeypatch.setattr(os, "environ", {})
    monkeypatch.setattr(mx.metal, "is_available", lambda: is_metal)
    set_buffer_limits()
    assert os.environ == (_SET if is_metal else {})
    os.environ["MLX_MAX_MB_PER_BUFFER"] = "1000"
    set_buffer_limits()
    assert os.environ["MLX_MAX_MB_PER_BUFFER"] == "1000"
