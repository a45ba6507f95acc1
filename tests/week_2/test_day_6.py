"""Day 2.6: a batch of caches in place, the life of a request, and the decode phase."""

import random
from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest
from tests.helpers import oracle
from tests.helpers.fakes import FakeClock, FakeModel, prefill_by_hand
from tests.helpers.tolerance import EXACT, F32, F32_MODEL, active_bytes, assert_close, peak_bytes
from tests.helpers.toy import (
    EOS,
    QWEN2,
    QWEN3,
    SECOND_EOS,
    ByteTokenizer,
    random_array,
    random_tokens,
    toy_checkpoint,
    toy_model,
)

from tiny_llm_lab.types import (
    DoneEvent,
    Prompt,
    QuantizedWeights,
    SamplingParams,
    TokenEvent,
    UserError,
)

TOKENIZER = ByteTokenizer()
T, F = True, False


def prefilled(llm, length, seed=0, G=2, D=4, dtype=mx.float32):
    cache = llm.TinyKvFullCache()
    shape = (1, G, length, D)
    cache.update_and_fetch(random_array(seed, *shape, dtype=dtype), -random_array(seed, *shape, dtype=dtype))
    return cache


def batch_of(llm, lengths, rows=None, max_seq_len=None, **shape):
    batch = llm.BatchingKvCache(rows or len(lengths), max_seq_len)
    for i, length in enumerate(lengths):
        assert batch.add_request(prefilled(llm, length, seed=i, **shape)) == i
    return batch


def packed_model(llm, odd_layer=None):
    """A model of 4 bits; in layer `odd_layer` the values have 8, so that q, k and v are not packed alike."""
    checkpoint = toy_checkpoint()
    weights = dict(checkpoint.weights)
    for name, w in weights.items():
        if name.endswith("_proj.weight"):
            bits = 8 if name == f"model.layers.{odd_layer}.self_attn.v_proj.weight" else 4
            weights[name] = QuantizedWeights(*mx.quantize(w, group_size=32, bits=bits), 32, bits)
    return llm.build_model(replace(checkpoint, weights=weights))


class Rows:
    """What a batch cache must hold, as one NumPy array per row; values are the negated keys."""

    def __init__(self):
        self.rows = []

    def add(self, cache):
        self.rows.append(np.array(cache.fetch()[0])[0])

    def remove(self, row):
        self.rows[row] = self.rows[-1]
        self.rows.pop()

    def append(self, batch, key):
        got_key, got_value = batch.update_and_fetch(key, -key)
        self.rows = [np.concatenate([r, n], axis=1) for r, n in zip(self.rows, np.array(key), strict=True)]
        lengths = [row.shape[1] for row in self.rows]
        assert batch.offset == lengths
        assert got_key.shape == got_value.shape == (len(lengths), 2, max(lengths), 4)
        for i, row in enumerate(self.rows):
            end = lengths[i]
            assert_close(got_key[i, :, :end], row, EXACT, legend="[G, S, D]", what=f"keys of row {i}")
            assert_close(got_value[i, :, :end], -row, EXACT, legend="[G, S, D]", what=f"values of row {i}")


@pytest.mark.task("2.6.1")
def test_batch_of_three_lengths(llm):
    batch, rows = llm.BatchingKvCache(4), Rows()
    for i, length in enumerate([2, 5, 3]):
        cache = prefilled(llm, length, seed=i)
        assert batch.add_request(cache) == i
        rows.add(cache)
    assert batch.offset == [2, 5, 3]
    want = [[T, T, T, F, F, F], [T, T, T, T, T, T], [T, T, T, T, F, F]]
    got = batch.attention_mask(1)
    assert got.shape == (3, 1, 1, 6)
    assert got[:, 0, 0].tolist() == want
    rows.append(batch, random_array(10, 3, 2, 1, 4))
    assert batch.offset == [3, 6, 4]


@pytest.mark.task("2.6.1")
def test_batch_masks_several_new_tokens(llm):
    got = batch_of(llm, [1, 3]).attention_mask(2)
    assert got.shape == (2, 1, 2, 5)
    assert got[:, 0].tolist() == [
        [[T, T, F, F, F], [T, T, T, F, F]],
        [[T, T, T, T, F], [T, T, T, T, T]],
    ]


@pytest.mark.task("2.6.1")
@pytest.mark.parametrize("leaver", [0, 1, 2])
def test_last_row_takes_the_place_of_one_that_leaves(llm, leaver):
    batch, rows = llm.BatchingKvCache(3), Rows()
    for i, length in enumerate([2, 5, 3]):
        cache = prefilled(llm, length, seed=i)
        batch.add_request(cache)
        rows.add(cache)
    rows.append(batch, random_array(10, 3, 2, 1, 4))
    batch.remove_request(leaver)
    rows.remove(leaver)
    rows.append(batch, random_array(11, 2, 2, 1, 4))
    newcomer = prefilled(llm, 4, seed=9)
    assert batch.add_request(newcomer) == 2
    rows.add(newcomer)
    rows.append(batch, random_array(12, 3, 2, 1, 4))


@pytest.mark.task("2.6.1")
@pytest.mark.parametrize("seed", range(4))
def test_batch_through_a_long_random_life(llm, seed):
    rng = random.Random(seed)
    batch, rows = llm.BatchingKvCache(5), Rows()
    for step in range(120):
        if len(rows.rows) < 5 and rng.random() < 0.3:
            cache = prefilled(llm, rng.choice([1, 3, 30, 70]), seed=step)
            assert batch.add_request(cache) == len(rows.rows)
            rows.add(cache)
        elif rows.rows and rng.random() < 0.15:
            row = rng.randrange(len(rows.rows))
            batch.remove_request(row)
            rows.remove(row)
        if rows.rows:
            rows.append(batch, random_array(step, len(rows.rows), 2, rng.choice([1, 1, 1, 3]), 4))


@pytest.mark.task("2.6.1")
def test_batch_does_not_touch_the_cache_that_it_copies(llm):
    batch, cache = llm.BatchingKvCache(2), prefilled(llm, 3)
    want = mx.array(cache.fetch()[0])
    batch.add_request(cache)
    batch.update_and_fetch(mx.ones((1, 2, 1, 4)), mx.ones((1, 2, 1, 4)))
    assert_close(cache.fetch()[0], want, EXACT)
    cache.release()
    assert_close(
        batch.update_and_fetch(mx.ones((1, 2, 1, 4)), mx.ones((1, 2, 1, 4)))[0][:, :, :3], want, EXACT
    )


@pytest.mark.task("2.6.1")
def test_batch_keeps_the_dtype(llm):
    batch = batch_of(llm, [3], dtype=mx.bfloat16)
    new = random_array(1, 1, 2, 1, 4, dtype=mx.bfloat16)
    for stored in batch.update_and_fetch(new, new):
        assert_close(stored[:, :, 3:], new, EXACT, dtype=mx.bfloat16)


@pytest.mark.task("2.6.1")
def test_batch_rejects_what_it_cannot_hold(llm):
    full = batch_of(llm, [2, 5])
    with pytest.raises(ValueError):
        full.add_request(prefilled(llm, 1))
    short = batch_of(llm, [2], rows=3, max_seq_len=5)
    with pytest.raises(ValueError):
        short.add_request(llm.TinyKvFullCache())
    with pytest.raises(ValueError):
        short.add_request(prefilled(llm, 6))
    assert short.offset == [2]
    assert short.add_request(prefilled(llm, 5)) == 1


@pytest.mark.task("2.6.1")
@pytest.mark.parametrize("row", [-1, 2, 7])
def test_batch_rejects_a_row_that_is_not_active(llm, row):
    batch = batch_of(llm, [2, 5], rows=8)
    with pytest.raises(ValueError):
        batch.remove_request(row)
    assert batch.offset == [2, 5]


@pytest.mark.task("2.6.1")
def test_batch_rejects_an_update_that_does_not_fit(llm):
    batch = batch_of(llm, [2, 5], rows=4, max_seq_len=6)
    for rows in (1, 3, 4):
        with pytest.raises(ValueError):
            batch.update_and_fetch(mx.ones((rows, 2, 1, 4)), mx.ones((rows, 2, 1, 4)))
    one_more = mx.ones((2, 2, 1, 4))
    batch.update_and_fetch(one_more, one_more)
    assert batch.offset == [3, 6]
    with pytest.raises(ValueError):
        batch.update_and_fetch(one_more, one_more)
    assert batch.offset == [3, 6]


@pytest.mark.task("2.6.1")
def test_batch_gives_its_memory_back(llm):
    before = active_bytes()
    batch = batch_of(llm, [500, 400], D=64)
    mx.eval(batch.update_and_fetch(mx.ones((2, 2, 1, 64)), mx.ones((2, 2, 1, 64))))
    assert active_bytes() - before > 2 * 2 * 400 * 64 * 4
    batch.release()
    assert active_bytes() - before < 1024
    assert batch.offset == []
    batch.release()
    assert batch.add_request(prefilled(llm, 3)) == 0


ROW = 2 * 2 * 300 * 64 * 4  # bytes of keys and values of a row of 300 tokens in the tests below


@pytest.mark.task("2.6.1")
@pytest.mark.parametrize("max_seq_len", [512, 100_000])
def test_decode_step_allocates_nothing_that_grows(llm, max_seq_len):
    batch = batch_of(llm, [300] * 8, max_seq_len=max_seq_len, D=64)
    new = random_array(1, 8, 2, 1, 64)
    mx.eval(new)
    steps = [peak_bytes(lambda: batch.update_and_fetch(new, new)) for _ in range(10)]
    # One step in ten may make room. 8 rows that are copied would be 8 * ROW.
    assert sorted(steps)[-2] < ROW / 2


@pytest.mark.task("2.6.1")
def test_a_join_makes_room_for_the_next_token_as_well(llm):
    """Who joins decodes at once: storage that is full to the last place would grow twice in a row."""
    batch = batch_of(llm, [20] * 7, rows=8, D=64)
    batch.add_request(prefilled(llm, 320, D=64))
    new = random_array(1, 8, 2, 1, 64)
    mx.eval(new)
    assert peak_bytes(lambda: batch.update_and_fetch(new, new)) < ROW / 2


@pytest.mark.task("2.6.1")
def test_a_row_has_no_room_beyond_max_seq_len(llm):
    before = active_bytes()
    batch = batch_of(llm, [200] * 8, max_seq_len=302, D=64)
    new = random_array(1, 8, 2, 101, 64)
    mx.eval(batch.update_and_fetch(new, new))
    del new
    assert active_bytes() - before <= 8 * 2 * 2 * 302 * 64 * 4 + 1024


@pytest.mark.task("2.6.1")
def test_join_allocates_about_one_row(llm):
    batch = batch_of(llm, [300] * 7, rows=8, D=64)
    newcomer = prefilled(llm, 300, D=64)
    newcomer.materialize()
    assert peak_bytes(lambda: batch.add_request(newcomer) and None) < 2 * ROW
    new = mx.ones((8, 2, 1, 64))
    mx.eval(new)
    assert peak_bytes(lambda: batch.update_and_fetch(new, new)) < ROW / 2, "the join was only put off"


@pytest.mark.task("2.6.1")
@pytest.mark.parametrize("row", [0, 3, 7])
def test_leave_allocates_about_one_row(llm, row):
    batch = batch_of(llm, [300] * 8, D=64)
    new = mx.ones((7, 2, 1, 64))
    mx.eval(new)
    assert peak_bytes(lambda: batch.remove_request(row)) < 2 * ROW
    assert peak_bytes(lambda: batch.update_and_fetch(new, new)) < ROW / 2, "the move was only put off"


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


def request_for(llm, prompt="hello", model=None, max_seq_len=None, clock=None, idx=0, **sampling):
    """A request whose prompt counts as computed, so that tokens can be given to it by hand."""
    request = llm.Request(
        model or FakeModel(),
        TOKENIZER,
        prompt,
        128,
        idx,
        max_seq_len=max_seq_len,
        sampling=SamplingParams(**sampling),
        clock=clock or FakeClock(),
    )
    request.offset = len(request.prefill_tokens)
    return request


def feed(request, tokens):
    """The first token comes from prefill, the others from decode steps; stops when the request does."""
    for token in tokens:
        if request.is_done:
            break
        (request.decode_done if request.token_ids else request.accept)(token)
    return request


@pytest.mark.task("2.6.3")
def test_new_request_has_computed_nothing(llm):
    model = FakeModel()
    request = llm.Request(model, TOKENIZER, "hello", 64, 3, max_seq_len=100)
    assert (request.prefill_tokens, request.prefill_max_step, request.prompt_idx) == (list(b"hello"), 64, 3)
    assert (request.max_seq_len, request.sampling) == (100, SamplingParams())
    assert (request.offset, request.next_token, request.token_ids) == (0, None, [])
    assert (request.finish_reason, request.is_done, request.is_prefill_done) == (None, False, False)
    assert (request.text(), request.take_events()) == ("", [])
    assert [layer.offset for layer in request.kv_cache] == [0] * model.config.num_hidden_layers
    assert model.calls == []


@pytest.mark.task("2.6.3")
def test_request_takes_token_ids_as_they_are(llm):
    tokens = [5, EOS, 7]
    request = llm.Request(FakeModel(), TOKENIZER, tokens)
    assert request.prefill_tokens == [5, EOS, 7]
    assert request.max_seq_len == FakeModel().config.max_position_embeddings
    request.prefill_tokens.append(1)
    assert tokens == [5, EOS, 7]


@pytest.mark.task("2.6.3")
@pytest.mark.parametrize(
    ("prompt", "step", "max_seq_len"),
    [
        ("", 128, None),
        ([], 128, None),
        ("abcdef", 128, 5),
        ([97, 258], 128, None),
        ([-1], 128, None),
        ("abc", 0, None),
        ("abc", -1, 5),
        ("abc", 128, 0),
        ("abc", 128, 5000),
    ],
)
def test_request_rejects_bad_input(llm, prompt, step, max_seq_len):
    with pytest.raises(UserError):
        llm.Request(FakeModel(), TOKENIZER, prompt, step, max_seq_len=max_seq_len)


@pytest.mark.task("2.6.3")
def test_request_notes_its_tokens(llm):
    request = request_for(llm)
    assert request.is_prefill_done
    request.accept(ord("x"))
    assert (request.next_token, request.token_ids, request.offset) == (ord("x"), [ord("x")], 5)
    request.decode_done(ord("y"))
    assert (request.next_token, request.token_ids, request.offset) == (ord("y"), list(b"xy"), 6)
    assert (request.text(), request.is_done) == ("xy", False)


@pytest.mark.task("2.6.3")
@pytest.mark.parametrize("end", [EOS, SECOND_EOS])
def test_request_ends_before_either_end_token(llm, end):
    request = feed(request_for(llm), [*b"xy", end])
    assert (request.finish_reason, request.token_ids, request.text()) == ("stop", list(b"xy"), "xy")
    with pytest.raises(ValueError):
        request.accept(ord("z"))
    with pytest.raises(ValueError):
        request.decode_done(ord("z"))
    assert request.token_ids == list(b"xy")


@pytest.mark.task("2.6.3")
def test_request_may_end_with_its_first_token(llm):
    request = feed(request_for(llm), [EOS])
    assert (request.is_done, request.finish_reason, request.token_ids) == (True, "stop", [])
    events = request.take_events()
    assert [type(event) for event in events] == [DoneEvent]
    assert events[0].completion == request.completion()
    assert request.completion().timing.ttft_s is None


@pytest.mark.task("2.6.3")
def test_request_can_ignore_end_tokens(llm):
    request = feed(request_for(llm, ignore_eos=True, max_tokens=4), [ord("x"), EOS, SECOND_EOS, ord("y")])
    assert (request.finish_reason, request.token_ids) == ("length", [ord("x"), EOS, SECOND_EOS, ord("y")])
    assert request.text() == "xy"


@pytest.mark.task("2.6.3")
@pytest.mark.parametrize("max_tokens", [1, 3])
def test_request_ends_after_max_tokens(llm, max_tokens):
    request = feed(request_for(llm, max_tokens=max_tokens), b"abcdefgh")
    assert (request.finish_reason, len(request.token_ids)) == ("length", max_tokens)


@pytest.mark.task("2.6.3")
@pytest.mark.parametrize(("max_seq_len", "num_tokens"), [(5, 1), (6, 2), (9, 5)])
def test_request_ends_when_the_next_token_could_not_be_stored(llm, max_seq_len, num_tokens):
    # Five prompt tokens; the token that fills the last place is followed by one that needs none.
    request = feed(request_for(llm, "hello", max_seq_len=max_seq_len), b"abcdefghij")
    assert (request.finish_reason, len(request.token_ids)) == ("length", num_tokens)
    assert request.offset == max_seq_len


@pytest.mark.task("2.6.3")
def test_request_ends_at_a_stop_string_across_tokens(llm):
    request = feed(request_for(llm, stop=("END", "zz")), b"a b END more")
    assert (request.finish_reason, request.text()) == ("stop", "a b ")
    assert request.token_ids == list(b"a b END")


@pytest.mark.task("2.6.3")
def test_stop_string_at_the_last_allowed_token_is_a_stop(llm):
    request = feed(request_for(llm, stop=("END",), max_tokens=4), b"aEND")
    assert (request.finish_reason, request.text()) == ("stop", "a")


@pytest.mark.task("2.6.3")
def test_request_releases_held_back_text_at_the_end(llm):
    request = feed(request_for(llm, stop=("END",), max_tokens=3), b"aEN")
    assert (request.finish_reason, request.text()) == ("length", "aEN")
    events = request.take_events()
    assert [type(event) for event in events] == [TokenEvent] * 4 + [DoneEvent]
    assert [(event.token_id, event.text) for event in events[:4]] == [
        (97, "a"),
        (69, ""),
        (78, ""),
        (None, "EN"),
    ]


@pytest.mark.task("2.6.3")
def test_request_does_not_lose_an_unfinished_character(llm):
    request = feed(request_for(llm), [*"né".encode(), "é".encode()[0], EOS])
    assert request.text() == "né\N{REPLACEMENT CHARACTER}"
    events = request.take_events()
    assert [event.text for event in events[:-1]] == ["n", "", "é", "", "\N{REPLACEMENT CHARACTER}"]
    assert events[-1].completion.text == request.text()


@pytest.mark.task("2.6.3")
def test_request_hands_every_event_out_once(llm):
    request = request_for(llm, idx=4, max_tokens=3)
    request.accept(ord("x"))
    first = request.take_events()
    assert [(event.prompt_idx, event.token_id, event.text) for event in first] == [(4, ord("x"), "x")]
    assert request.take_events() == []
    feed(request, b"yz")
    later = request.take_events()
    assert [type(event) for event in later] == [TokenEvent, TokenEvent, DoneEvent]
    assert "".join(event.text for event in first + later[:-1]) == request.text() == "xyz"
    assert request.take_events() == []


@pytest.mark.task("2.6.3")
def test_request_sums_itself_up(llm):
    clock = FakeClock(start=10.0)
    request = request_for(llm, "hello", clock=clock, idx=7, max_tokens=3)
    with pytest.raises(ValueError):
        request.completion()
    for seconds, token in ((2.0, "x"), (0.5, "y"), (0.25, "z")):
        clock.now += seconds
        feed(request, token.encode())
    done = request.completion()
    assert (done.prompt_idx, done.num_prompt_tokens, done.token_ids) == (7, 5, tuple(b"xyz"))
    assert (done.text, done.finish_reason, done.error) == ("xyz", "length", None)
    assert (done.timing.arrival_s, done.timing.token_s) == (10.0, (12.0, 12.5, 12.75))
    assert (done.timing.ttft_s, done.timing.itl_s) == (2.0, [0.5, 0.25])


@pytest.mark.task("2.6.3")
def test_request_may_have_arrived_earlier(llm):
    clock = FakeClock(start=10.0)
    request = llm.Request(FakeModel(), TOKENIZER, "hi", arrival_s=8.5, clock=clock)
    request.offset = 2
    feed(request, [ord("x"), EOS])
    assert request.completion().timing.ttft_s == 1.5


@pytest.mark.task("2.6.3")
def test_request_gives_its_cache_back(llm):
    model = FakeModel(num_layers=3)
    request = llm.Request(model, TOKENIZER, "hello")
    model(mx.array([request.prefill_tokens]), 0, request.kv_cache, logits_to_keep=1)
    assert all(cache.holds_memory for cache in model.caches)
    request.release()
    request.release()
    assert len(model.caches) == 3
    assert not any(cache.holds_memory for cache in model.caches)


@pytest.mark.task("2.6.3")
def test_request_samples_with_its_own_settings(llm):
    logits = random_array(40, 1, 258) * 2
    settings = {"temperature": 0.8, "top_k": 40, "top_p": 0.9, "min_p": 0.02, "seed": 5}
    request = request_for(llm, **settings)
    sample = llm.Sampler(SamplingParams(**settings))
    got = [request.sample(logits, position).item() for position in range(12)]
    assert got == [sample(logits, position).item() for position in range(12)]
    assert len(set(got)) > 1
    assert request_for(llm).sample(logits, 3).item() == int(np.argmax(np.array(logits)))


def generator(llm, model, prompts=(), batch_size=4, **settings):
    settings.setdefault("clock", FakeClock())
    return llm.BatchGenerator(model, TOKENIZER, list(prompts), batch_size=batch_size, **settings)


def admit(llm, run, model, idx, prompt, **sampling):
    """A request that has been prefilled by hand takes a row of the batch."""
    request = llm.Request(
        model, TOKENIZER, prompt, 128, idx, sampling=SamplingParams(**sampling), clock=FakeClock()
    )
    prefill_by_hand(model, request)
    for whole, layer in zip(run.kv_cache, request.kv_cache, strict=True):
        whole.add_request(layer)
    request.release()
    request.take_events()
    run.decode_requests.append(request)
    return request


@pytest.mark.task("2.6.4")
def test_generator_starts_with_all_prompts_waiting(llm):
    model, prompts = FakeModel(), ["a", [1, 2], Prompt("c")]
    run = generator(llm, model, prompts)
    assert (len(run.request_queue), run.pending_prefill_request, run.decode_requests) == (3, None, [])
    assert run.has_work_remaining()
    assert run.collect_results() == []
    assert model.calls == []
    assert prompts == ["a", [1, 2], Prompt("c")]


@pytest.mark.task("2.6.4")
def test_generator_has_work_while_anything_waits_prefills_or_decodes(llm):
    model = FakeModel()
    run = generator(llm, model)
    assert not run.has_work_remaining()
    run.pending_prefill_request = llm.Request(model, TOKENIZER, "abc")
    assert run.has_work_remaining()
    run.pending_prefill_request = None
    admit(llm, run, model, 0, "abc")
    assert run.has_work_remaining()


@pytest.mark.task("2.6.4")
@pytest.mark.parametrize(
    "settings", [{"batch_size": 0}, {"prefill_step": 0}, {"max_seq_len": 0}, {"max_seq_len": 5000}]
)
def test_generator_rejects_settings_out_of_range(llm, settings):
    with pytest.raises(UserError):
        generator(llm, FakeModel(), ["a"], **settings)


@pytest.mark.task("2.6.4")
def test_decode_phase_without_requests_does_nothing(llm):
    model = FakeModel()
    assert generator(llm, model, ["a"]).handle_decode_phase() is False
    assert model.calls == []


@pytest.mark.task("2.6.4")
def test_decode_phase_is_one_forward_for_all(llm):
    model = FakeModel()
    run = generator(llm, model)
    prompts = ["abc", "a", "a long prompt"]
    for idx, prompt in enumerate(prompts):
        admit(llm, run, model, idx, prompt)
    del model.calls[:]
    for step in range(5):
        before = [request.next_token for request in run.decode_requests]
        assert run.handle_decode_phase() is True
        assert len(model.calls) == step + 1
        call = model.calls[-1]
        assert call.tokens == [[token] for token in before]
        assert call.offset == [3 + step, 1 + step, 13 + step]
        assert call.logits_to_keep == 1
    for request, prompt in zip(run.decode_requests, prompts, strict=True):
        assert request.token_ids == model.answer_to(prompt.encode(), 6)
        assert request.offset == len(prompt) + 5


@pytest.mark.task("2.6.4")
def test_requests_leave_the_batch_as_they_end(llm):
    model = FakeModel(num_layers=3)
    run = generator(llm, model, batch_size=5)
    wanted = {0: ("first", 4), 1: ("second!", 2), 2: ("3", 6), 3: ("the fourth", 2), 4: ("fifth", 3)}
    for idx, (prompt, max_tokens) in wanted.items():
        admit(llm, run, model, idx, prompt, max_tokens=max_tokens)
    sizes = []
    while run.handle_decode_phase():
        sizes.append(len(run.decode_requests))
        for layer in run.kv_cache:
            assert layer.offset == [request.offset for request in run.decode_requests]
    assert sizes == [3, 2, 1, 1, 0]
    done = run.collect_results()
    assert [completion.prompt_idx for completion in done] == [0, 1, 2, 3, 4]
    for completion in done:
        prompt, max_tokens = wanted[completion.prompt_idx]
        assert list(completion.token_ids) == model.answer_to(prompt.encode(), max_tokens), prompt


@pytest.mark.task("2.6.4")
def test_newcomer_takes_a_row_that_was_left(llm):
    model = FakeModel()
    run = generator(llm, model, batch_size=2)
    admit(llm, run, model, 0, "a long first prompt", max_tokens=3)
    admit(llm, run, model, 1, "second", max_tokens=8)
    while len(run.decode_requests) == 2:
        run.handle_decode_phase()
    admit(llm, run, model, 2, "new", max_tokens=4)
    while run.handle_decode_phase():
        pass
    got = [list(completion.token_ids) for completion in run.collect_results()]
    wanted = (("a long first prompt", 3), ("second", 8), ("new", 4))
    assert got == [model.answer_to(prompt.encode(), n) for prompt, n in wanted]


@pytest.mark.task("2.6.4")
def test_an_end_token_ends_one_row_only(llm):
    model = FakeModel({"ab": [*b"xy", EOS], "cd": [*b"uvw", SECOND_EOS], "ef": list(b"0123456789")})
    run = generator(llm, model)
    for idx, prompt in enumerate(["ab", "cd", "ef"]):
        admit(llm, run, model, idx, prompt, max_tokens=6)
    while run.handle_decode_phase():
        pass
    done = run.collect_results()
    assert [completion.text for completion in done] == ["xy", "uvw", "012345"]
    assert [completion.finish_reason for completion in done] == ["stop", "stop", "length"]


@pytest.mark.task("2.6.4")
def test_draws_do_not_depend_on_batch_mates(llm):
    sampling = {"temperature": 1.0, "seed": 11, "max_tokens": 8}

    def answer(mates):
        model = FakeModel()
        run = generator(llm, model)
        for idx, mate in enumerate(mates):
            admit(llm, run, model, idx + 1, mate, temperature=1.0, seed=idx, max_tokens=3 + idx)
        admit(llm, run, model, 0, "me", **sampling)
        while run.handle_decode_phase():
            pass
        return run.collect_results()[0].token_ids

    alone = answer([])
    assert answer(["you"]) == answer(["a", "bc", "def"]) == alone
    assert len(set(alone)) > 2


@pytest.mark.task("2.6.4")
def test_decode_phase_tells_what_happens(llm):
    events = []
    model = FakeModel({"ab": [*b"xy", EOS], "cd": [*b"uvw", EOS]})
    run = generator(llm, model, on_event=events.append)
    for idx, prompt in enumerate(["ab", "cd"]):
        admit(llm, run, model, idx, prompt)
    run.handle_decode_phase()
    assert [(event.prompt_idx, event.text) for event in events] == [(0, "y"), (1, "v")]
    run.handle_decode_phase()
    assert [type(event) for event in events[2:]] == [DoneEvent, TokenEvent]
    assert events[2].completion == run.collect_results()[0]


@pytest.mark.task("2.6.4")
def test_generator_gives_all_memory_back(llm):
    before = active_bytes()
    model = toy_model(llm)
    mx.eval(model(mx.array([[1]])))
    weights = active_bytes() - before
    run = generator(llm, model)
    for idx, prompt in enumerate(["abc" * 50, "d", "e" * 90]):
        admit(llm, run, model, idx, prompt)
    run.pending_prefill_request = llm.Request(model, TOKENIZER, "pending" * 30)
    prefill_by_hand(model, run.pending_prefill_request)
    run.handle_decode_phase()
    stored = active_bytes() - before - weights
    run.release()
    # A few small arrays live on: the last logits, and the keys of samplers.
    assert active_bytes() - before - weights < stored / 20
    run.release()
