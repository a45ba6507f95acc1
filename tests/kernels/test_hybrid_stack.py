"""Hybrids and experts whose layers are one operator: what their layers compute one by one, to the bit."""

import mlx.core as mx
import pytest
from tests.helpers.devices import on_cpu
from tests.helpers.stacks import Watched, through_rows
from tests.helpers.toy import random_tokens

from tiny_llm_lab import load_checkpoint, load_solution
from tiny_llm_lab.types import Wanted
from tiny_llm_lab.types.computing.layer_stack import StepStates
from tiny_llm_ref.cache.state import SequenceState

# The last layer of the first has attention, that of the second a state.
NAMES = ["random:qwen3.5-shrunk,layers=4", "random:qwen3.5-shrunk,layers=5"]
EXPERTS = [f"random:{name}" for name in ("qwen3.5-moe-shrunk", "qwen3-moe-shrunk", "qwen2-moe-shrunk")]


def model_of(name, dtype):
    with on_cpu("cpp"):
        model = load_solution("ref").build_model(load_checkpoint(name, dtype=dtype))
    model.stack = Watched(model.stack)
    return model


ROWS = [
    ("float32", "", Wanted()),
    ("float32", "", Wanted(1, [1])),
    ("bfloat16", "", Wanted(4, [1, 0])),
    ("bfloat16", ",bits=4,group=32", Wanted(1, [])),
    ("float16", ",bits=4,group=32", Wanted(0, None)),
]


@pytest.mark.parametrize("name", NAMES + EXPERTS)
@pytest.mark.parametrize(("dtype", "options", "wanted"), ROWS)
def test_rows_have_the_same_bits(llm, name, dtype, options, wanted):
    model = model_of(name + options, dtype)
    got, watched = through_rows(llm, model, wanted), model.stack
    assert watched.calls == [True] * 7, "three chunks, another prompt and three decodes"
    model.stack = None
    for a, b in zip(got, through_rows(llm, model, wanted), strict=True):
        assert a.dtype == b.dtype and mx.array_equal(a, b)


def test_what_leaves_a_step_to_its_layers():
    model = model_of(NAMES[0], "float32")
    mx.eval(model(random_tokens(1, 9)[None]))
    assert not any(model.stack.calls), "no cache"


def test_a_decode_continues_states_where_they_are():
    """For kernel and stack alike: a step needs no memory of the size of a state."""
    model, token = model_of("random:qwen3.5-shrunk,layers=4,value_dim=512", "float32"), mx.array([[5]])
    of_layer = 4 * mx.array(model.config.hybrid.delta_net.state_shape).prod().item()
    for stack in (model.stack, None):
        model.stack, cache = stack, model.create_kv_cache()
        for i in range(3):
            mx.eval(model(token, i, cache))
        mx.reset_peak_memory()
        before = mx.get_active_memory()
        for i in range(3, 6):
            mx.eval(model(token, i, cache), [layer.states for layer in cache if hasattr(layer, "states")])
        assert mx.get_peak_memory() - before < of_layer
        assert isinstance(cache[0], SequenceState) and cache[0].offset == 6


def test_a_state_that_somebody_holds_stays_and_may_have_any_strides():
    model, token = model_of(NAMES[0], "float32"), mx.array([[5]])
    found = []
    for is_turned in (False, True):
        cache = model.create_kv_cache()
        mx.eval(model(token, 0, cache))
        tail, held = cache[0].states[0]
        before = held.tolist()
        if is_turned:
            turned = mx.contiguous(held.transpose(1, 0, 2)).transpose(1, 0, 2)
            mx.eval(turned)
            cache[0].states = [(tail, turned)]
        found.append([model(token, 1, cache), cache[0].states[0][1]])
        mx.eval(found)
        assert held.tolist() == before
    assert all(mx.array_equal(a, b) for a, b in zip(*found, strict=True))


def test_states_that_do_not_fit():
    model = model_of(NAMES[0], "float32")
    x, wanted = mx.zeros((1, 2, model.config.hidden_size)), Wanted()
    sizes = model.config.hybrid.delta_net
    state = mx.zeros(sizes.tail_shape), mx.zeros(sizes.state_shape)
    for layers, starts, says in (
        ([], [], "has its own states"),
        ([[state]] * 3, [0, 2], "has its own states"),
        ([[state]] * 2, [0, 1], "starts must lead from 0"),
        ([[state, state]] * 2, [0, 2, 2], "a row or more"),
        ([[state]] * 2, [0, 1, 2], "every request has its state"),
        ([[state], [(state[0][1:], state[1])]], [0, 2], "conv inputs must be"),
        ([[(state[0], state[1][:1])]] * 2, [0, 2], "do not fit"),
    ):
        with pytest.raises(ValueError, match=says):
            model.stack.with_states(StepStates(layers, starts)).over_new_rows(x, wanted)
