"""Hybrids and experts whose layers are one operator: what their layers compute one by one, to the bit."""

from itertools import pairwise

import mlx.core as mx
import pytest
from tests.helpers.devices import on_cpu
from tests.helpers.toy import random_tokens

from tiny_llm_lab import load_checkpoint, load_solution
from tiny_llm_lab.types import EngineOptions, Prompt, SamplingParams, SchedulerConfig, Wanted
from tiny_llm_lab.types.computing.layer_stack import StepStates
from tiny_llm_ref.cache.kv_cache import BatchingKvCache
from tiny_llm_ref.cache.state import BatchingState, SequenceState

llm = load_solution("ref")
# The last layer of the first has attention, that of the second a state.
NAMES = ["random:qwen3.5-shrunk,layers=4", "random:qwen3.5-shrunk,layers=5"]
EXPERTS = [f"random:{name}" for name in ("qwen3.5-moe-shrunk", "qwen3-moe-shrunk", "qwen2-moe-shrunk")]


class Watched:
    """A stack that counts the steps that it took."""

    def __init__(self, stack):
        self.stack, self.counts = stack, []

    def with_states(self, states):
        bound = Watched(self.stack.with_states(states))
        bound.counts = self.counts
        return bound

    def __getattr__(self, name):
        def call(*args):
            made = getattr(self.stack, name)(*args)
            self.counts.append(made is not None)
            return made

        return call

    @property
    def taken(self):
        return sum(self.counts)


def model_of(name, dtype):
    with on_cpu("cpp"):
        model = llm.build_model(load_checkpoint(name, dtype=dtype))
    model.stack = Watched(model.stack)
    return model


def through_rows(model, wanted):
    """A prompt in chunks, then tokens of it beside another of another length: logits, and what is stored."""
    tokens, one, other = random_tokens(1, 60), model.create_kv_cache(), model.create_kv_cache()
    steps = []
    for start, end in pairwise((0, 9, 14, 40)):
        steps.append(model(tokens[None, start:end], start, one, wanted=Wanted(last=wanted.last)))
        mx.eval(steps)
    steps.append(model(tokens[None, :6], 0, other))
    mx.eval(steps)
    caches = [
        BatchingState(3) if isinstance(layer, SequenceState) else BatchingKvCache(3, 60, model.ops)
        for layer in one
    ]
    for layer, *parts in zip(caches, one, other, strict=True):
        for part in parts:
            layer.add_request(part)
    for i in range(3):
        both = mx.stack([tokens[40 + i], tokens[6 + i]])[:, None]
        steps.append(model(both, caches[0].offsets(2), caches, wanted=Wanted(rows=wanted.rows)))
        mx.eval(steps)
    for layer in caches:
        is_state = isinstance(layer, BatchingState)
        steps += [part for state in layer.states for part in state] if is_state else [layer.keys[:2, :, :9]]
    return steps


@pytest.mark.parametrize("name", NAMES + EXPERTS)
@pytest.mark.parametrize(
    ("dtype", "options", "wanted"),
    [
        ("float32", "", Wanted()),
        ("float32", "", Wanted(1, [1])),
        ("bfloat16", "", Wanted(4, [1, 0])),
        ("bfloat16", ",bits=4,group=32", Wanted(1, [])),
        ("float16", ",bits=4,group=32", Wanted(0, None)),
    ],
)
def test_rows_have_the_same_bits(name, dtype, options, wanted):
    model = model_of(name + options, dtype)
    got, watched = through_rows(model, wanted), model.stack
    assert watched.taken == 7, "three chunks, another prompt and three decodes"
    model.stack = None
    for a, b in zip(got, through_rows(model, wanted), strict=True):
        assert a.dtype == b.dtype and mx.array_equal(a, b)


def answers(model, name, kv_bits):
    config = SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=24)
    options = EngineOptions(num_blocks=64, block_size=4, snapshot_every=16, num_states=12, kv_bits=kv_bits)
    engine = llm.Engine(model, load_checkpoint(name).tokenizer, config, options)
    prompts = [
        Prompt([(7 * i + 3 * j) % 300 for j in range(length)], SamplingParams(max_tokens=20, ignore_eos=True))
        for i, length in enumerate((17, 1, 61, 3, 33))
    ]
    return [each.token_ids for each in engine.generate(prompts)]


@pytest.mark.parametrize("name", NAMES + EXPERTS)
@pytest.mark.parametrize(("dtype", "kv_bits"), [("float32", None), ("bfloat16", 8)])
def test_an_engine_gives_the_same_answers(name, dtype, kv_bits):
    model = model_of(name, dtype)
    got, watched = answers(model, name, kv_bits), model.stack
    assert watched.taken > 10, "a step that keeps no state within goes through the stack"
    model.stack = None
    assert answers(model, name, kv_bits) == got


def test_what_leaves_a_step_to_its_layers():
    model = model_of(NAMES[0], "float32")
    mx.eval(model(random_tokens(1, 9)[None]))
    assert model.stack.taken == 0, "no cache"


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
