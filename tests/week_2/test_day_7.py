"""Day 2.7: chunked prefill. Chunking may change when things happen, never what is said."""

import random

import mlx.core as mx
import numpy as np
import pytest
from tests.helpers import oracle
from tests.helpers.fakes import FakeClock, FakeModel, live_requests
from tests.helpers.tolerance import EXACT, F32, F32_MODEL, active_bytes, assert_close, peak_bytes, rounding
from tests.helpers.toy import (
    EOS,
    QWEN2,
    QWEN3,
    SECOND_EOS,
    ByteTokenizer,
    random_array,
    random_tokens,
    toy_model,
)

from tiny_llm_lab.types import (
    DoneEvent,
    PrefillEvent,
    Prompt,
    SamplingParams,
    TokenEvent,
    UserError,
)

TOKENIZER = ByteTokenizer()
UNCHUNKED = 999_999


# Where a prompt is cut


def sizes(spans):
    return [end - start for start, end in spans]


@pytest.mark.task("2.7.1")
@pytest.mark.parametrize(
    ("prompt_len", "step", "want"),
    [
        (10, 4, [(0, 4), (4, 8), (8, 10)]),
        (1, 1, [(0, 1)]),
        (1, 128, [(0, 1)]),
        (127, 128, [(0, 127)]),
        (128, 128, [(0, 128)]),
        (129, 128, [(0, 128), (128, 129)]),
        (256, 128, [(0, 128), (128, 256)]),
        (4, 1, [(0, 1), (1, 2), (2, 3), (3, 4)]),
        (500, UNCHUNKED, [(0, 500)]),
    ],
)
def test_chunk_spans(llm, prompt_len, step, want):
    assert list(llm.chunk_spans(prompt_len, step)) == want


@pytest.mark.task("2.7.1")
def test_chunk_spans_of_long_prompts(llm):
    assert sizes(list(llm.chunk_spans(1000, 128))) == [128] * 7 + [104]
    assert sizes(list(llm.chunk_spans(5000, 2048))) == [2048, 2048, 904]
    spans = list(llm.chunk_spans(30_000, 2048))
    assert len(spans) == 15
    assert spans[-1] == (28_672, 30_000)
    assert sizes(spans)[-1] == 1328


@pytest.mark.task("2.7.1")
def test_chunk_spans_have_no_gaps(llm):
    for prompt_len in range(1, 40):
        for step in range(1, 45):
            spans = list(llm.chunk_spans(prompt_len, step))
            assert [start for start, _ in spans] == [0, *(end for _, end in spans[:-1])], (prompt_len, step)
            assert spans[-1][1] == prompt_len
            assert all(size == step for size in sizes(spans)[:-1])
            assert 1 <= sizes(spans)[-1] <= step


@pytest.mark.task("2.7.1")
def test_chunk_spans_go_on_from_any_token(llm):
    assert list(llm.chunk_spans(10, 4, 4)) == [(4, 8), (8, 10)]
    assert next(llm.chunk_spans(10, 4, 5)) == (5, 9)
    assert list(llm.chunk_spans(10, 4, 9)) == [(9, 10)]


@pytest.mark.task("2.7.1")
@pytest.mark.parametrize(
    ("prompt_len", "step", "start"), [(0, 4, 0), (-1, 4, 0), (4, 0, 0), (4, -1, 0), (4, 2, 4), (4, 2, -1)]
)
def test_chunk_spans_rejects_nothing_to_cut(llm, prompt_len, step, start):
    with pytest.raises(ValueError):
        llm.chunk_spans(prompt_len, step, start)


# The mask of a chunk


@pytest.mark.task("2.7.2")
def test_chunked_prefill_mask_of_three_tokens_after_five(llm):
    I = -np.inf  # noqa: E741
    want = [
        [0, 0, 0, 0, 0, 0, I, I],
        [0, 0, 0, 0, 0, 0, 0, I],
        [0, 0, 0, 0, 0, 0, 0, 0],
    ]
    assert_close(llm.chunked_attention_mask(5, 3, 8), want, EXACT, legend="[L, S]", dtype=mx.float32)
    # What comes after the chunk does not make the mask wider.
    assert_close(llm.chunked_attention_mask(5, 3, 100), want, EXACT, legend="[L, S]")


@pytest.mark.task("2.7.2")
@pytest.mark.parametrize("step", [1, 3, 4, 7, 10, 11])
def test_chunked_prefill_masks_are_the_rows_of_the_whole_mask(llm, step):
    whole = np.where(oracle.visible_causal(10, 10), 0.0, -np.inf)
    for start in range(0, 10, step):
        end = min(start + step, 10)
        got = llm.chunked_attention_mask(start, end - start, 10)
        assert_close(got, whole[start:end, :end], EXACT, legend="[L, S]", what=f"chunk {start} to {end}")


@pytest.mark.task("2.7.2")
@pytest.mark.parametrize(("start", "size"), [(0, 1), (0, 9), (5, 3), (64, 65)])
@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16])
def test_chunked_prefill_mask_equals_causal_in_mlx(llm, start, size, dtype):
    end = start + size
    mask = llm.chunked_attention_mask(start, size, end, dtype)
    assert mask.dtype == dtype
    q = random_array(1, 1, 4, size, 16, dtype=dtype)
    k, v = (random_array(2 + i, 1, 2, end, 16, dtype=dtype) for i in range(2))
    got = mx.fast.scaled_dot_product_attention(q, k, v, scale=0.25, mask=mask)
    want = mx.fast.scaled_dot_product_attention(q, k, v, scale=0.25, mask="causal")
    assert_close(got, want, F32 if dtype == mx.float32 else rounding(dtype, 2))


@pytest.mark.task("2.7.2")
@pytest.mark.parametrize(
    ("start", "size", "total"), [(-1, 2, 8), (0, 0, 8), (3, -1, 8), (6, 3, 8), (8, 1, 8)]
)
def test_chunked_prefill_mask_rejects_what_is_no_chunk(llm, start, size, total):
    with pytest.raises(ValueError):
        llm.chunked_attention_mask(start, size, total)


# One chunk at a time


def text_of(length, seed=0):
    return bytes(random.Random(seed).choices(range(97, 123), k=length)).decode()


LENGTHS_AND_STEPS = [
    (length, step)
    for step in (1, 4, 32)
    for length in sorted({1, step - 1, step, step + 1, 3 * step + 1} - {0})
] + [(100, UNCHUNKED)]


@pytest.mark.task("2.7.3")
@pytest.mark.parametrize(("length", "step"), LENGTHS_AND_STEPS)
def test_chunked_prefill_computes_every_token_once_in_order(llm, length, step):
    model, prompt = FakeModel(), text_of(length)
    request = llm.Request(model, TOKENIZER, prompt, step)
    done = 0
    while not request.is_prefill_done:
        computed = request.try_prefill()
        done += computed
        assert 1 <= computed <= step
        assert request.offset == done
    starts = list(range(0, length, step))
    assert [call.offset for call in model.calls] == starts
    assert [call.length for call in model.calls] == [min(step, length - start) for start in starts]
    assert [token for call in model.calls for token in call.tokens[0]] == list(prompt.encode())
    assert request.token_ids == model.answer_to(prompt.encode(), 1)
    assert request.next_token == request.token_ids[0]


@pytest.mark.task("2.7.3")
@pytest.mark.parametrize(("length", "step"), LENGTHS_AND_STEPS)
def test_chunked_prefill_asks_for_one_logit_row_in_all(llm, length, step):
    model = FakeModel()
    request = llm.Request(model, TOKENIZER, text_of(length), step)
    while not request.is_prefill_done:
        request.try_prefill()
    assert [call.logits_to_keep for call in model.calls] == [0] * (len(model.calls) - 1) + [1]


@pytest.mark.task("2.7.3")
def test_chunked_prefill_materialises_every_layer_before_the_next_chunk(llm):
    model = FakeModel(num_layers=3)
    request = llm.Request(model, TOKENIZER, text_of(10), 4)
    for _ in range(3):
        del model.log[:]
        request.try_prefill()
        after = model.log[model.log.index("forward") + 1 :]
        assert {f"materialize {layer}" for layer in range(3)} <= set(after)


@pytest.mark.task("2.7.3")
def test_chunked_prefill_leaves_no_graph_behind(llm):
    model = toy_model(llm)
    request = llm.Request(model, TOKENIZER, text_of(300), 64)
    while not request.is_prefill_done:
        request.try_prefill()
        for layer in request.kv_cache:
            assert peak_bytes(layer.materialize) == 0, (
                f"after {request.offset} tokens work is still to be done"
            )


@pytest.mark.task("2.7.3")
def test_chunked_prefill_samples_only_after_the_last_chunk(llm):
    request = llm.Request(FakeModel(), TOKENIZER, text_of(9), 4)
    draws = []
    sample = request.sample
    request.sample = lambda *args: draws.append((request.offset, args[1])) or sample(*args)
    for _ in range(2):
        request.try_prefill()
        assert (request.next_token, request.token_ids, request.text()) == (None, [], "")
        assert (request.is_prefill_done, request.is_done) == (False, False)
    assert draws == []
    request.try_prefill()
    assert [position for _, position in draws] == [9]
    assert (request.is_prefill_done, len(request.token_ids)) == (True, 1)


@pytest.mark.task("2.7.3")
@pytest.mark.parametrize("length", [1, 4, 9])
def test_chunked_prefill_cannot_go_on_after_the_end(llm, length):
    model = FakeModel()
    request = llm.Request(model, TOKENIZER, text_of(length), 4)
    while not request.is_prefill_done:
        request.try_prefill()
    num_calls, tokens = len(model.calls), list(request.token_ids)
    with pytest.raises(ValueError):
        request.try_prefill()
    assert (len(model.calls), request.offset, request.token_ids) == (num_calls, length, tokens)


@pytest.mark.task("2.7.3")
def test_chunked_prefill_reports_every_chunk(llm):
    clock = FakeClock()
    model = FakeModel(before_call=lambda call: clock.sleep(call.length))
    request = llm.Request(model, TOKENIZER, text_of(10), 4, 6, clock=clock)
    for _ in range(3):
        request.try_prefill()
    events = request.take_events()
    assert [type(event) for event in events] == [PrefillEvent] * 3 + [TokenEvent]
    assert {event.prompt_idx for event in events} == {6}
    assert [event.num_computed_tokens for event in events[:3]] == [4, 8, 10]
    assert {event.num_prompt_tokens for event in events[:3]} == {10}
    assert [event.time_s for event in events] == [4.0, 8.0, 10.0, 10.0]


@pytest.mark.task("2.7.3")
@pytest.mark.parametrize("end", [EOS, SECOND_EOS])
def test_chunked_prefill_may_end_with_an_end_token(llm, end):
    prompt = text_of(9)
    request = llm.Request(FakeModel({prompt: [end]}), TOKENIZER, prompt, 4)
    while not request.is_prefill_done:
        request.try_prefill()
    assert (request.is_done, request.finish_reason, request.token_ids) == (True, "stop", [])
    assert isinstance(request.take_events()[-1], DoneEvent)


@pytest.mark.task("2.7.3")
@pytest.mark.parametrize(("settings", "is_done"), [((9, None), True), ((10, None), False), ((100, 1), True)])
def test_chunked_prefill_of_a_prompt_that_fills_the_cache(llm, settings, is_done):
    max_seq_len, max_tokens = settings
    sampling = SamplingParams(max_tokens=max_tokens)
    request = llm.Request(FakeModel(), TOKENIZER, text_of(9), 4, max_seq_len=max_seq_len, sampling=sampling)
    while not request.is_prefill_done:
        request.try_prefill()
    assert len(request.token_ids) == 1
    assert (request.is_done, request.finish_reason) == (is_done, "length" if is_done else None)


@pytest.mark.task("2.7.3")
@pytest.mark.parametrize("config", [QWEN3, QWEN2], ids=lambda config: config.model_type)
@pytest.mark.parametrize("step", [1, 7, 32, 33, UNCHUNKED])
def test_chunked_prefill_stores_what_one_pass_stores(llm, config, step):
    model, prompt = toy_model(llm, config), random_tokens(50, 1, 65)
    whole = model.create_kv_cache()
    logits = model(prompt, 0, whole)
    request = llm.Request(model, TOKENIZER, prompt[0].tolist(), step)
    seen = []
    request.sample = lambda row, position: seen.append(row) or mx.argmax(row, axis=-1)
    while not request.is_prefill_done:
        request.try_prefill()
    for layer, (mine, target) in enumerate(zip(request.kv_cache, whole, strict=True)):
        assert_close(mine.fetch()[0], target.fetch()[0], F32_MODEL, what=f"keys of layer {layer}")
        assert_close(mine.fetch()[1], target.fetch()[1], F32_MODEL, what=f"values of layer {layer}")
    assert_close(seen[0], logits[:, -1], F32_MODEL, legend="[1, V]", what="the logits after the prompt")


@pytest.mark.task("2.7.3")
def test_chunked_prefill_does_not_move_the_draws(llm):
    def draws(step):
        sampling = SamplingParams(temperature=1.0, seed=4)
        request = llm.Request(FakeModel(), TOKENIZER, text_of(20), step, sampling=sampling)
        while not request.is_prefill_done:
            request.try_prefill()
        rows = [random_array(i, 1, 258) for i in range(5)]
        return [*request.token_ids, *(request.sample(row, 21 + i).item() for i, row in enumerate(rows))]

    assert draws(1) == draws(6) == draws(UNCHUNKED)


# The three phases


def run_all(llm, model, prompts, **settings):
    clock = FakeClock(tick=1e-4)
    settings = {"clock": clock, "max_seq_len": 512, **settings}
    return llm.batch_generate(model, TOKENIZER, prompts, **settings)


def limited(prompt, max_tokens, **settings):
    return Prompt(prompt, SamplingParams(max_tokens=max_tokens), **settings)


@pytest.mark.task("2.7.7")
@pytest.mark.parametrize("batch_size", [1, 2, 3, 8])
@pytest.mark.parametrize("step", [1, 4, 32, UNCHUNKED])
def test_chunked_prefill_answers_every_prompt_in_order(llm, batch_size, step):
    model = FakeModel()
    lengths = [(3, 9), (40, 2), (1, 1), (33, 5), (4, 12), (5, 3), (32, 2)]
    prompts = [limited(text_of(length, i), n) for i, (length, n) in enumerate(lengths)]
    done = run_all(llm, model, prompts, batch_size=batch_size, prefill_step=step)
    assert [completion.prompt_idx for completion in done] == list(range(7))
    for completion, prompt, (length, n) in zip(done, prompts, lengths, strict=True):
        assert list(completion.token_ids) == model.answer_to(prompt.content.encode(), n)
        assert completion.text == bytes(completion.token_ids).decode()
        assert (completion.num_prompt_tokens, completion.finish_reason) == (length, "length")
    assert live_requests(model) == 0


@pytest.mark.task("2.7.7")
def test_lone_prompt_of_many_chunks(llm):
    model = FakeModel()
    done = run_all(llm, model, [limited(text_of(100), 3)], prefill_step=8)
    assert [list(completion.token_ids) for completion in done] == [model.answer_to(text_of(100).encode(), 3)]


@pytest.mark.task("2.7.7")
def test_prefilled_request_that_waits_for_the_only_slot_is_not_lost(llm):
    model = FakeModel()
    prompts = [limited(text_of(9, i), 4) for i in range(2)]
    done = run_all(llm, model, prompts, batch_size=1, prefill_step=4)
    assert [list(c.token_ids) for c in done] == [model.answer_to(p.content.encode(), 4) for p in prompts]


@pytest.mark.task("2.7.7")
def test_no_prompts_no_answers(llm):
    model = FakeModel()
    assert run_all(llm, model, []) == []
    assert model.calls == []


@pytest.mark.task("2.7.7")
def test_prompts_are_not_changed(llm):
    prompts = ["abc", [1, 2, 3], limited("def", 2)]
    before = ["abc", [1, 2, 3], limited("def", 2)]
    run_all(llm, FakeModel(), prompts, prefill_step=2, sampling=SamplingParams(max_tokens=2))
    assert prompts == before
    run_all(llm, FakeModel(), tuple(prompts), sampling=SamplingParams(max_tokens=2))


@pytest.mark.task("2.7.7")
def test_sampling_serves_prompts_that_bring_none(llm):
    own = SamplingParams(max_tokens=2)
    done = run_all(llm, FakeModel(), ["abc", Prompt("def", own), [97]], sampling=SamplingParams(max_tokens=5))
    assert [len(completion.token_ids) for completion in done] == [5, 2, 5]


@pytest.mark.task("2.7.7")
@pytest.mark.parametrize("batch_size", [1, 3])
def test_end_token_first_takes_no_slot(llm, batch_size):
    answers = {"aaaa": [EOS], "bb": [*b"xy", SECOND_EOS], "cccccc": [SECOND_EOS], "d": [*b"uvw", EOS]}
    model = FakeModel(answers)
    done = run_all(llm, model, list(answers), batch_size=batch_size, prefill_step=3)
    assert [completion.text for completion in done] == ["", "xy", "", "uvw"]
    assert {completion.finish_reason for completion in done} == {"stop"}
    assert all(token < 256 for call in model.decode_calls() for row in call.tokens for token in row)
    assert live_requests(model) == 0


@pytest.mark.task("2.7.7")
@pytest.mark.parametrize("step", [4, UNCHUNKED])
def test_bad_prompt_is_an_error_of_its_own(llm, step):
    model, good = FakeModel(), [text_of(12, i) for i in range(3)]
    prompts = [good[0], "", good[1], text_of(17), [], good[2]]
    done = run_all(
        llm, model, prompts, prefill_step=step, max_seq_len=16, sampling=SamplingParams(max_tokens=3)
    )
    assert [completion.finish_reason == "error" for completion in done] == [
        False,
        True,
        False,
        True,
        True,
        False,
    ]
    for completion in done:
        if completion.finish_reason == "error":
            assert (completion.token_ids, completion.text) == ((), "")
            assert completion.error
        else:
            assert completion.error is None
    got = [list(done[i].token_ids) for i in (0, 2, 5)]
    assert got == [model.answer_to(prompt.encode(), 3) for prompt in good]
    assert live_requests(model) == 0


@pytest.mark.task("2.7.7")
def test_only_bad_prompts(llm):
    assert [completion.finish_reason for completion in run_all(llm, FakeModel(), ["", ""])] == ["error"] * 2


@pytest.mark.task("2.7.7")
@pytest.mark.parametrize(
    "settings", [{"batch_size": 0}, {"prefill_step": 0}, {"max_seq_len": 0}, {"max_seq_len": 5000}]
)
def test_settings_out_of_range_are_rejected(llm, settings):
    with pytest.raises(UserError):
        run_all(llm, FakeModel(), ["abc"], **settings)


@pytest.mark.task("2.7.7")
def test_one_string_is_no_list_of_prompts(llm):
    with pytest.raises(UserError):
        run_all(llm, FakeModel(), "abc")


@pytest.mark.task("2.7.7")
@pytest.mark.parametrize(("max_seq_len", "num_tokens"), [(9, 1), (10, 2), (14, 6)])
def test_rows_hold_max_seq_len_tokens_and_no_more(llm, max_seq_len, num_tokens):
    model = FakeModel()
    done = run_all(llm, model, [text_of(9), text_of(4)], prefill_step=4, max_seq_len=max_seq_len)
    assert [len(completion.token_ids) for completion in done] == [num_tokens, num_tokens + 5]
    assert list(done[0].token_ids) == model.answer_to(text_of(9).encode(), num_tokens)


@pytest.mark.task("2.7.7")
def test_chunked_prefill_events_tell_the_whole_story(llm):
    events = []
    prompts = [limited(text_of(10), 4), "", limited(text_of(3, 1), 6), limited(text_of(7, 2), 1)]
    done = run_all(llm, FakeModel(), prompts, batch_size=2, prefill_step=4, on_event=events.append)
    times = [event.time_s for event in events if not isinstance(event, DoneEvent)]
    assert times == sorted(times)
    for completion in done:
        idx = completion.prompt_idx
        mine = [e for e in events if (e.completion if isinstance(e, DoneEvent) else e).prompt_idx == idx]
        assert [event for event in mine if isinstance(event, DoneEvent)] == [mine[-1]]
        assert mine[-1].completion == completion
        chunks = [event.num_computed_tokens for event in mine if isinstance(event, PrefillEvent)]
        total = completion.num_prompt_tokens
        assert chunks == ([*range(4, total, 4), total] if total else [])
        tokens = [event for event in mine if isinstance(event, TokenEvent)]
        assert tuple(event.token_id for event in tokens) == completion.token_ids
        assert "".join(event.text for event in tokens) == completion.text
        assert tuple(event.time_s for event in tokens) == completion.timing.token_s


@pytest.mark.task("2.7.7")
def test_events_come_as_they_happen(llm):
    num_calls = []
    model = FakeModel()
    prompts = [limited(text_of(10), 3)]
    run_all(llm, model, prompts, prefill_step=4, on_event=lambda event: num_calls.append(len(model.calls)))
    # Three chunks, the last with a token, two decode steps, the last with the end.
    assert num_calls == [1, 2, 3, 3, 4, 5, 5]


def tokens_between_tokens(events, idx):
    """Prompt tokens that were computed between each two tokens of a request."""
    gaps, computed, seen = [], {}, False
    total = 0
    for event in events:
        if isinstance(event, PrefillEvent):
            total += event.num_computed_tokens - computed.get(event.prompt_idx, 0)
            computed[event.prompt_idx] = event.num_computed_tokens
        elif isinstance(event, TokenEvent) and event.prompt_idx == idx:
            if seen:
                gaps.append(total)
            seen, total = True, 0
    return gaps


@pytest.mark.task("2.7.7")
@pytest.mark.parametrize("step", [1, 8, 32])
def test_chunked_prefill_delays_a_decode_by_one_chunk_at_most(llm, step):
    events = []
    long = [limited(text_of(100, i), 2) for i in range(3)]
    run_all(llm, FakeModel(), [limited("me", 60), *long], prefill_step=step, on_event=events.append)
    gaps = tokens_between_tokens(events, 0)
    assert max(gaps) == step
    assert sum(gaps) == min(300, step * sum(gap > 0 for gap in gaps))


@pytest.mark.task("2.7.7")
def test_chunked_prefill_never_starves_the_decodes(llm):
    # The first request must get a token for every chunk of the long prompt: 25 of them.
    model, events = FakeModel(), []
    prompts = [limited("me", 60), limited(text_of(100), 2)]
    run_all(llm, model, prompts, prefill_step=4, on_event=events.append)
    gaps = tokens_between_tokens(events, 0)
    assert gaps.count(4) == 25
    assert all(len(call.tokens) == 1 or not call.batched for call in model.calls[:25])


@pytest.mark.task("2.7.7")
def test_decodes_never_starve_the_chunked_prefill(llm):
    events = []
    prompts = [limited("a", 200), limited("b", 200), limited(text_of(80), 2)]
    run_all(llm, FakeModel(), prompts, batch_size=3, prefill_step=4, on_event=events.append)
    order = [event.prompt_idx for event in events if not isinstance(event, DoneEvent)]
    # Twenty chunks, each with one token of both others in between, from when it starts.
    assert order.index(2) < 10
    last_chunk = max(i for i, e in enumerate(events) if isinstance(e, PrefillEvent) and e.prompt_idx == 2)
    assert last_chunk < 80


@pytest.mark.task("2.7.7")
@pytest.mark.parametrize("batch_size", [1, 2, 4])
def test_no_more_than_batch_size_requests_hold_memory(llm, batch_size):
    held = []

    def look(call):
        held.append(live_requests(model) + (len(call.tokens) if call.batched else 0))

    model = FakeModel(before_call=look)
    prompts = [limited(text_of(3 + 5 * (i % 3), i), 8 + i % 4) for i in range(9)]
    run_all(llm, model, prompts, batch_size=batch_size, prefill_step=4)
    assert max(held) == batch_size


@pytest.mark.task("2.7.7")
def test_all_slots_are_used(llm):
    model = FakeModel()
    run_all(llm, model, [limited(text_of(2, i), 20) for i in range(4)], batch_size=4, prefill_step=8)
    assert max(len(call.tokens) for call in model.decode_calls()) == 4


@pytest.mark.task("2.7.7")
def test_arrivals_are_honoured(llm, monkeypatch):
    clock, events = FakeClock(tick=1e-4), []
    clock.take_over(monkeypatch, llm.BatchGenerator)
    model = FakeModel(before_call=lambda call: clock.sleep(0.1))
    arrivals = [3.0, 0.0, 30.0, 0.5, 3.0]
    prompts = [limited(text_of(6, i), 4, arrival_s=at) for i, at in enumerate(arrivals)]
    done = llm.batch_generate(
        model, TOKENIZER, prompts, prefill_step=4, batch_size=2, on_event=events.append, clock=clock
    )
    assert [list(c.token_ids) for c in done] == [model.answer_to(p.content.encode(), 4) for p in prompts]
    started = [e.prompt_idx for e in events if isinstance(e, PrefillEvent) and e.num_computed_tokens == 4]
    assert started == [1, 3, 0, 4, 2]
    start_s = done[1].timing.arrival_s
    for completion, at in zip(done, arrivals, strict=True):
        assert completion.timing.arrival_s - start_s == pytest.approx(at, abs=1e-6)
        assert completion.timing.ttft_s > 0.2, "two chunks cannot be computed before the request arrives"
    # Nobody keeps the first two waiting, nor the one that comes when all is quiet.
    assert done[1].timing.ttft_s < 0.3
    assert done[2].timing.ttft_s < 0.4


@pytest.mark.task("2.7.7")
def test_waiting_is_a_short_sleep(llm, monkeypatch):
    clock = FakeClock()
    clock.take_over(monkeypatch, llm.BatchGenerator)
    run = llm.BatchGenerator(FakeModel(), TOKENIZER, [Prompt("abc", arrival_s=10.0)], clock=clock)
    run.wait_for_arrival()
    assert len(clock.naps) == 1
    assert 0 < clock.naps[0] <= 1, "a sleep of seconds leaves the user's interrupt unanswered"
    clock.now = 20.0
    run.wait_for_arrival()
    assert all(nap <= 0 for nap in clock.naps[1:]), "the request has arrived"
    clock.naps.clear()
    llm.BatchGenerator(FakeModel(), TOKENIZER, [], clock=clock).wait_for_arrival()
    assert all(nap <= 0 for nap in clock.naps)


@pytest.mark.task("2.7.7")
def test_time_before_the_run_is_not_counted(llm):
    clock = FakeClock(tick=1e-4, start=1e6)
    done = llm.batch_generate(FakeModel(), TOKENIZER, [limited("ab", 2)], clock=clock)
    assert done[0].timing.arrival_s == pytest.approx(1e6, abs=0.01)


class BoomError(Exception):
    pass


@pytest.mark.task("2.7.7")
@pytest.mark.parametrize("error", [BoomError, KeyboardInterrupt])
@pytest.mark.parametrize("call_number", [1, 2, 3, 5, 8, 13])
def test_memory_is_given_back_after_an_exception(llm, error, call_number):
    def fail(call):
        if len(model.calls) == call_number:
            raise error

    model = FakeModel(before_call=fail)
    prompts = [limited(text_of(3 + 7 * (i % 2), i), 5) for i in range(6)]
    with pytest.raises(error):
        run_all(llm, model, prompts, batch_size=3, prefill_step=4)
    assert live_requests(model) == 0


@pytest.mark.task("2.7.7")
def test_memory_is_given_back_when_a_callback_fails(llm):
    before = active_bytes()
    model = toy_model(llm)
    mx.eval(model(mx.array([[1]])))
    weights = active_bytes() - before
    peak, num_tokens = [], []

    def fail(event):
        peak.append(active_bytes() - before - weights)
        num_tokens.append(isinstance(event, TokenEvent))
        if sum(num_tokens) == 8:
            raise BoomError

    # The exception keeps every local variable of the run alive: its caches must be empty all the same.
    with pytest.raises(BoomError) as caught:
        run_all(llm, model, [text_of(150, i) for i in range(4)], prefill_step=64, on_event=fail)
    assert caught.value.__traceback__ is not None
    assert active_bytes() - before - weights < max(peak) / 10


@pytest.mark.task("2.7.4")
def test_prefill_phase_computes_one_chunk(llm):
    model = FakeModel()
    run = llm.BatchGenerator(model, TOKENIZER, [limited(text_of(10), 3)], prefill_step=4, clock=FakeClock())
    for offset in (4, 8, 10):
        assert run.handle_prefill_phase() is True
        assert run.pending_prefill_request.offset == offset
        assert run.move_prefill_to_decode() is (offset == 10)
    assert run.pending_prefill_request is None
    assert len(run.request_queue) == 0
    assert [request.offset for request in run.decode_requests] == [10]
    assert [layer.offset for layer in run.kv_cache] == [[10], [10]]
    assert live_requests(model) == 0, (
        "the row of the batch has a copy: the request's own cache is to be released"
    )
    assert run.handle_prefill_phase() is False
    assert run.move_prefill_to_decode() is False


@pytest.mark.task("2.7.4")
def test_prefill_phase_waits_for_a_free_slot(llm):
    model = FakeModel()
    prompts = [limited("a", 3), limited("b", 3)]
    run = llm.BatchGenerator(model, TOKENIZER, prompts, batch_size=1, clock=FakeClock())
    run.handle_prefill_phase()
    run.move_prefill_to_decode()
    assert run.handle_prefill_phase() is False
    assert run.pending_prefill_request is None
    run.handle_decode_phase()
    run.handle_decode_phase()
    assert run.decode_requests == []
    assert run.handle_prefill_phase() is True


@pytest.mark.task("2.7.4")
def test_prefill_phase_waits_for_an_arrival(llm):
    clock = FakeClock(start=5.0)
    run = llm.BatchGenerator(FakeModel(), TOKENIZER, [Prompt("abc", arrival_s=2.0)], clock=clock)
    clock.now = 6.9
    assert run.handle_prefill_phase() is False
    clock.now = 7.1
    assert run.handle_prefill_phase() is True


@pytest.mark.task("2.7.4")
def test_request_that_ends_with_its_first_token_takes_no_row(llm):
    model = FakeModel({"abc": [EOS]})
    run = llm.BatchGenerator(model, TOKENIZER, ["abc"], clock=FakeClock())
    run.handle_prefill_phase()
    assert run.move_prefill_to_decode() is True
    assert (run.decode_requests, run.pending_prefill_request) == ([], None)
    assert [layer.offset for layer in run.kv_cache] == [[], []]
    assert not run.has_work_remaining()
    assert [completion.finish_reason for completion in run.collect_results()] == ["stop"]
    assert live_requests(model) == 0


GRID_LENGTHS = sorted({n for c in (7, 32, 128) for n in (1, c - 1, c, c + 1, 3 * c + 1)})


@pytest.fixture(scope="module")
def toy_answers(llm):
    """A model, prompts around the edges of every chunk size, and what the plain cached loop answers."""
    model = toy_model(llm)
    prompts = [Prompt(text_of(n, n), SamplingParams(max_tokens=4 + n % 5)) for n in GRID_LENGTHS]
    answers = []
    for prompt in prompts:
        loop = llm.simple_generate_with_kv_cache(
            model, TOKENIZER, prompt.content, max_tokens=prompt.sampling.max_tokens
        )
        answers.append(tuple(event.token_id for event in loop if event.token_id is not None))
    return model, prompts, answers


@pytest.mark.task("2.7.7")
@pytest.mark.parametrize("is_shuffled", [False, True], ids=["in_order", "shuffled"])
@pytest.mark.parametrize("batch_size", [1, 3, 8])
@pytest.mark.parametrize("step", [1, 7, 32, 128, UNCHUNKED])
def test_chunked_prefill_never_changes_the_answer(llm, toy_answers, step, batch_size, is_shuffled):
    model, prompts, answers = toy_answers
    order = list(range(len(prompts)))
    if is_shuffled:
        random.Random(step + batch_size).shuffle(order)
    done = run_all(llm, model, [prompts[i] for i in order], batch_size=batch_size, prefill_step=step)
    assert [completion.token_ids for completion in done] == [answers[i] for i in order]


@pytest.mark.task("2.7.7")
def test_chunked_prefill_never_changes_the_draws(llm, toy_answers):
    model, prompts, _ = toy_answers

    def answers(**settings):
        drawn = [
            Prompt(p.content, SamplingParams(1.0, seed=i, max_tokens=6)) for i, p in enumerate(prompts[:9])
        ]
        return [completion.token_ids for completion in run_all(llm, model, drawn, **settings)]

    want = answers(prefill_step=UNCHUNKED, batch_size=1)
    assert answers(prefill_step=5, batch_size=3) == answers(prefill_step=32, batch_size=8) == want


def streamed(llm, model, prompt, sampling=None, **settings):
    return llm.stream_generate(model, TOKENIZER, prompt, sampling or SamplingParams(max_tokens=3), **settings)


@pytest.mark.task("2.7.3")
@pytest.mark.parametrize("step", [1, 4, UNCHUNKED])
def test_stream_of_one_prompt(llm, step):
    model = FakeModel()
    events = list(streamed(llm, model, text_of(10), prefill_step=step))
    chunks = [event.num_computed_tokens for event in events if isinstance(event, PrefillEvent)]
    assert chunks == [*range(step, 10, step), 10]
    tokens = [event.token_id for event in events if isinstance(event, TokenEvent)]
    assert tokens == model.answer_to(text_of(10).encode(), 3)
    assert [type(event) for event in events[len(chunks) :]] == [TokenEvent] * 3 + [DoneEvent]
    assert list(events[-1].completion.token_ids) == tokens
    assert live_requests(model) == 0


@pytest.mark.task("2.7.3")
def test_stream_yields_as_it_computes(llm):
    model = FakeModel()
    events = streamed(llm, model, text_of(10), prefill_step=4)
    for num_calls in (1, 2, 3, 3, 4, 5, 5):
        next(events)
        assert len(model.calls) == num_calls


@pytest.mark.task("2.7.3")
@pytest.mark.parametrize("num_events", [1, 3, 5])
def test_stream_that_is_closed_gives_its_memory_back(llm, num_events):
    model = FakeModel()
    events = streamed(llm, model, text_of(10), prefill_step=4)
    for _ in range(num_events):
        next(events)
    assert live_requests(model) == 1
    events.close()
    assert live_requests(model) == 0


@pytest.mark.task("2.7.3")
@pytest.mark.parametrize(
    ("prompt", "settings"), [("", {}), ("abc", {"max_seq_len": 2}), ("abc", {"prefill_step": 0})]
)
def test_stream_rejects_what_it_cannot_serve(llm, prompt, settings):
    with pytest.raises(UserError):
        list(streamed(llm, FakeModel(), prompt, **settings))


@pytest.mark.task("2.7.3")
def test_stream_says_what_the_batch_says(llm):
    model = toy_model(llm, QWEN2)
    sampling = SamplingParams(temperature=1.0, seed=2, max_tokens=8)
    (done,) = run_all(llm, model, [text_of(40)], prefill_step=16, sampling=sampling)
    events = list(streamed(llm, model, text_of(40), sampling, prefill_step=7))
    assert events[-1].completion.token_ids == done.token_ids
    assert "".join(event.text for event in events if isinstance(event, TokenEvent)) == done.text


# Choosing a chunk size

PLENTY = 10**9


@pytest.mark.task("2.7.5")
@pytest.mark.parametrize(
    ("sequence_length", "decodes", "want"),
    [
        (100, 0, 128),
        (2048, 0, 128),
        (2049, 0, 256),
        (30_000, 3, 256),
        (100, 3, 128),
        (30_000, 4, 64),
        (100, 4, 64),  # 80 % of five slots: the fifth belongs to the prompt in prefill
        (100, 5, 64),
        (30_000, 5, 64),
    ],
)
def test_chunk_size_by_rule_of_thumb(llm, sequence_length, decodes, want):
    assert llm.select_optimal_chunk_size(sequence_length, PLENTY, decodes) == want


@pytest.mark.task("2.7.5")
@pytest.mark.parametrize(
    ("batch_size", "decodes", "want"),
    [(10, 7, 128), (10, 8, 64), (1, 0, 128), (1, 1, 64), (32, 25, 128), (32, 26, 64)],
)
def test_chunk_size_depends_on_the_share_of_slots(llm, batch_size, decodes, want):
    assert llm.select_optimal_chunk_size(100, PLENTY, decodes, batch_size=batch_size) == want


@pytest.mark.task("2.7.5")
@pytest.mark.parametrize(
    ("memory", "bytes_per_token", "want"),
    [(256_000, 1000, 256), (255_999, 1000, 255), (100_000, 1000, 100), (1000, 1000, 1), (50, 1, 50)],
)
def test_chunk_size_fits_into_memory(llm, memory, bytes_per_token, want):
    got = llm.select_optimal_chunk_size(4000, memory, 0, bytes_per_token=bytes_per_token)
    assert got == want
    busy = llm.select_optimal_chunk_size(4000, memory, 5, bytes_per_token=bytes_per_token)
    assert busy == min(want, 64)


@pytest.mark.task("2.7.5")
@pytest.mark.parametrize("memory", [0, 999, -5])
def test_chunk_size_without_memory_for_one_token(llm, memory):
    with pytest.raises(ValueError):
        llm.select_optimal_chunk_size(100, memory, 0, bytes_per_token=1000)


def chunker(llm, *chunks, target=0.05):
    adaptive = llm.AdaptiveChunker(target)
    for size, seconds in chunks:
        adaptive.record_chunk(size, seconds)
    return adaptive


@pytest.mark.task("2.7.5")
@pytest.mark.parametrize("base", [1, 16, 128, 2048])
def test_adaptive_chunker_starts_with_the_base(llm, base):
    assert llm.AdaptiveChunker().select_chunk_size(base, 0.0) == base
    assert llm.AdaptiveChunker().select_chunk_size(base, 0.79) == base


@pytest.mark.task("2.7.5")
@pytest.mark.parametrize(
    ("base", "want"), [(256, 128), (128, 64), (65, 32), (64, 32), (40, 32), (32, 32), (16, 16), (1, 1)]
)
@pytest.mark.parametrize("chunks", [[], [(128, 0.001)]])
def test_adaptive_chunker_halves_under_pressure(llm, base, want, chunks):
    adaptive = chunker(llm, *chunks)
    assert adaptive.select_chunk_size(base, 0.8) == want
    assert adaptive.select_chunk_size(base, 1.0) == want


@pytest.mark.task("2.7.5")
@pytest.mark.parametrize(
    ("base", "want"), [(16, 32), (128, 256), (256, 512), (300, 512), (512, 512), (2048, 2048)]
)
@pytest.mark.parametrize("pressure", [0.0, 0.79])
def test_adaptive_chunker_doubles_when_chunks_are_fast(llm, base, want, pressure):
    assert chunker(llm, (128, 1e-6)).select_chunk_size(base, pressure) == want


@pytest.mark.task("2.7.5")
@pytest.mark.parametrize(
    ("chunk", "want"),
    [
        ((128, 0.024), 256),  # 256 tokens will take 0.048 s
        ((128, 0.026), 128),  # 0.052 s: too long, although the chunk itself was fast enough
        ((64, 0.0124), 256),
        ((512, 0.101), 128),
        ((512, 0.099), 256),  # slower than the target, but far larger than what comes next
    ],
)
def test_adaptive_chunker_predicts_the_doubled_chunk(llm, chunk, want):
    assert chunker(llm, chunk).select_chunk_size(128, 0.5) == want


@pytest.mark.task("2.7.5")
def test_adaptive_chunker_averages_time_per_token(llm):
    # 640 tokens in 0.1 s: 256 take 0.04 s. The mean of the two rates would say 0.132 s.
    assert chunker(llm, (600, 0.06), (40, 0.04)).select_chunk_size(128, 0.0) == 256
    assert chunker(llm, (600, 0.06), (40, 0.07)).select_chunk_size(128, 0.0) == 128


@pytest.mark.task("2.7.5")
def test_adaptive_chunker_has_a_target(llm):
    assert chunker(llm, (128, 0.1), target=0.3).select_chunk_size(128, 0.0) == 256
    assert chunker(llm, (128, 0.01), target=0.015).select_chunk_size(128, 0.0) == 128


@pytest.mark.task("2.7.5")
def test_adaptive_chunker_remembers_sixteen_chunks(llm):
    slow, fast = (128, 1.0), (128, 0.001)
    assert chunker(llm, slow, *[fast] * 15).select_chunk_size(128, 0.0) == 128
    assert chunker(llm, slow, *[fast] * 16).select_chunk_size(128, 0.0) == 256


@pytest.mark.task("2.7.5")
@pytest.mark.parametrize("pressure", [-0.1, 1.1, 5])
def test_adaptive_chunker_rejects_a_pressure_that_is_no_share(llm, pressure):
    with pytest.raises(ValueError):
        llm.AdaptiveChunker().select_chunk_size(128, pressure)


# Measuring the interleaving


@pytest.mark.task("2.7.6")
def test_chunked_prefill_metrics_start_empty(llm):
    metrics = llm.ChunkedPrefillMetrics()
    counts = (
        metrics.prefill_chunks_processed,
        metrics.prefill_tokens_processed,
        metrics.decode_requests_served,
    )
    assert counts == (0, 0, 0)
    assert (metrics.avg_chunk_time, metrics.avg_decode_time) == (None, None)
    assert metrics.prefill_to_decode_ratio is None
    assert metrics.get_interleaving_ratio() == float("inf")


@pytest.mark.task("2.7.6")
def test_chunked_prefill_metrics_count(llm):
    metrics = llm.ChunkedPrefillMetrics()
    for size in (128, 128, 44):
        metrics.record_prefill_chunk(0.1, size)
    assert (metrics.prefill_chunks_processed, metrics.prefill_tokens_processed) == (3, 300)
    assert metrics.get_interleaving_ratio() == float("inf")
    for _ in range(4):
        metrics.record_decode_step(0.01)
    assert metrics.decode_requests_served == 4
    assert metrics.get_interleaving_ratio() == 0.75
    assert metrics.prefill_to_decode_ratio == 75.0


@pytest.mark.task("2.7.6")
def test_chunked_prefill_metrics_average(llm):
    metrics = llm.ChunkedPrefillMetrics()
    metrics.record_prefill_chunk(0.2, 64)
    assert metrics.avg_chunk_time == pytest.approx(0.2)
    metrics.record_prefill_chunk(0.4, 64)
    assert metrics.avg_chunk_time == pytest.approx(0.22)
    metrics.record_prefill_chunk(0.0, 64)
    assert metrics.avg_chunk_time == pytest.approx(0.198)
    metrics.record_decode_step(1.0)
    metrics.record_decode_step(2.0)
    assert metrics.avg_decode_time == pytest.approx(1.1)
    assert metrics.avg_chunk_time == pytest.approx(0.198)


@pytest.mark.task("2.7.6")
def test_chunked_prefill_metrics_take_a_time_of_zero(llm):
    metrics = llm.ChunkedPrefillMetrics()
    metrics.record_prefill_chunk(0.0, 1)
    metrics.record_prefill_chunk(1.0, 1)
    assert metrics.avg_chunk_time == pytest.approx(0.1)


@pytest.mark.task("2.7.6")
def test_chunked_prefill_metrics_without_prefill(llm):
    metrics = llm.ChunkedPrefillMetrics()
    metrics.record_decode_step(0.5)
    assert (metrics.get_interleaving_ratio(), metrics.prefill_to_decode_ratio) == (0.0, 0.0)
