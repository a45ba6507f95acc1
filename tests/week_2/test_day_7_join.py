"""Day 2.7: a long prompt joins the batch, and no iteration copies more than its share of what is stored."""

import random

import mlx.core as mx
import numpy as np
import pytest
from tests.helpers.batching import prefilled
from tests.helpers.fakes import FakeClock, FakeModel
from tests.helpers.tolerance import EXACT, assert_close
from tests.helpers.toy import ByteTokenizer, random_array

from tiny_llm_lab.types import BatchSettings, Prompt, SamplingParams

pytestmark = pytest.mark.task("2.7.8")

LAYERS = 6


def layers_of(llm, lengths, rows=4, num_layers=LAYERS, max_seq_len=None):
    layers = [llm.BatchingKvCache(rows, max_seq_len, headroom=i) for i in range(num_layers)]
    for seed, length in enumerate(lengths):
        for layer in layers:
            layer.add_request(prefilled(llm, length, seed))
    return layers


class Watch:
    """What each iteration copies because storage grows: stored tokens, a layer counted by itself."""

    def __init__(self, layers):
        self.layers = layers
        self.copied = []
        self.shapes = self.stored = None
        self.look()

    def look(self):
        """Call at the end of every iteration."""
        shapes = [layer.keys.shape for layer in self.layers]
        if self.shapes is not None:
            grown = [new != old and min(old) > 0 for new, old in zip(shapes, self.shapes, strict=True)]
            self.copied.append(sum(grown) * self.stored)
        self.shapes, self.stored = shapes, sum(self.layers[0].offset)


def decode(layers, steps, watch):
    for step in range(steps):
        new = random_array(step, len(layers[0].offset), 2, 1, 4)
        for layer in layers:
            mx.eval(layer.update_and_fetch(new, new))
        watch.look()


@pytest.mark.parametrize("lengths", [[1, 1, 1], [40, 3, 61], [64, 64, 63]])
def test_rows_that_grow_token_by_token_copy_a_layer_at_a_time(llm, lengths):
    layers = layers_of(llm, lengths)
    watch = Watch(layers)
    for _ in range(300):
        stored = sum(layers[0].offset)
        decode(layers, 1, watch)
        assert watch.copied[-1] <= stored, "an iteration copies what one layer stores, not what all do"
    assert sum(count > 0 for count in watch.copied) >= LAYERS, "every layer has grown"


def test_reserved_room_stores_nothing_and_is_not_made_again(llm):
    (batch,) = layers_of(llm, [20, 30], num_layers=1)
    before = [np.array(part) for part in (batch.keys[:2, :, :30], batch.values[:2, :, :30])]
    batch.reserve(400)
    room = batch.keys.shape
    assert room[2] >= 400 and room[0] >= 3 and batch.offset == [20, 30]
    for part, old in zip((batch.keys, batch.values), before, strict=True):
        for row, length in enumerate(batch.offset):
            assert_close(part[row, :, :length], old[row, :, :length], EXACT, what=f"row {row}")
    batch.reserve(10)
    batch.add_request(prefilled(llm, 399))
    assert batch.keys.shape == room, "there was room for this request"
    decode([batch], 1, Watch([batch]))
    assert batch.keys.shape == room and batch.offset == [21, 31, 400]


def test_no_room_is_reserved_beyond_the_limits(llm):
    (batch,) = layers_of(llm, [20, 30], rows=2, num_layers=1, max_seq_len=100)
    batch.reserve(101)
    assert batch.keys.shape[:3] == (2, 2, 100)
    empty = llm.BatchingKvCache(2)
    empty.reserve(50)
    assert empty.keys.size == 0 and empty.offset == [], "its shapes are not known yet"


@pytest.mark.parametrize("num_chunks", [1, 3, 6, 31])
def test_layers_get_room_as_the_prompt_is_computed(llm, num_chunks):
    layers = layers_of(llm, [20, 30])
    watch = Watch(layers)
    length, stored, before = 640, 50, 0  # whole steps of storage: the next token needs one more
    for chunk in range(1, num_chunks + 1):
        llm.reserve_ahead(layers, length, length * chunk // num_chunks)
        watch.look()
        have = sum(layer.keys.shape[2] > length for layer in layers)
        assert have >= LAYERS * chunk // num_chunks, f"layers with {length + 1} places, chunk {chunk}"
        assert have - before <= -(-LAYERS // num_chunks), f"layers that grow for chunk {chunk}"
        assert watch.copied[-1] <= -(-LAYERS // num_chunks) * stored
        before = have
    assert before == LAYERS
    for layer in layers:
        layer.add_request(prefilled(llm, length))
    watch.look()
    decode(layers, 1, watch)
    assert watch.copied[-2:] == [0, 0], "neither the join nor the step behind it copies"


def watched_run(llm, prompts, batch_size, prefill_step):
    """The largest part of what all layers store that an iteration copies, and a run's results."""
    model = FakeModel(num_layers=LAYERS)
    run = llm.BatchGenerator(
        model,
        ByteTokenizer(),
        prompts,
        BatchSettings(batch_size=batch_size, prefill_step=prefill_step, max_seq_len=2000, clock=FakeClock()),
    )
    watch, shares = Watch(run.kv_cache), []
    while run.has_work_remaining():
        stored = sum(run.kv_cache[0].offset)
        run.handle_prefill_phase()
        run.handle_decode_phase()
        run.move_prefill_to_decode()
        watch.look()
        shares.append(watch.copied[-1] / max(stored, 1))
    assert len(run.collect_results()) == len(prompts)
    return model, shares, run.collect_results()


@pytest.mark.parametrize("is_ragged", [False, True])
def test_no_iteration_of_a_join_copies_more_than_its_share(llm, is_ragged):
    rng = random.Random(3)
    short = [[97 + i] * (rng.randrange(1, 60) if is_ragged else 20) for i in range(6)]
    prompts = [Prompt(tokens, SamplingParams(max_tokens=120)) for tokens in short]
    prompts.append(Prompt([98] * 1200, SamplingParams(max_tokens=5)))
    model, shares, done = watched_run(llm, prompts, batch_size=8, prefill_step=100)
    # A chunk in twelve for six layers: room for one of them, and one more may grow by itself.
    assert max(shares[8:]) <= 2, "layers whose stored tokens an iteration copies"
    for completion, prompt in zip(done, prompts, strict=True):
        want = model.answer_to(prompt.content, prompt.sampling.max_tokens)
        assert list(completion.token_ids) == want
