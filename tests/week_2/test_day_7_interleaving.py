"""Day 2.7: what happens when: events, chunks among decodes, arrivals."""

import pytest
from tests.helpers.fakes import FakeClock, FakeModel
from tests.helpers.phases import TOKENIZER, limited, run_all, text_of

from tiny_llm_lab.types import DoneEvent, PrefillEvent, TokenEvent


@pytest.mark.task("2.7.7")
def test_chunked_prefill_events_tell_the_whole_story(llm):
    events = []
    prompts = [limited(text_of(10), 4), "", limited(text_of(3, 1), 6), limited(text_of(7, 2), 1)]
    done = run_all(llm, prompts, FakeModel(), batch_size=2, prefill_step=4, on_event=events.append)
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
    run_all(llm, prompts, model, prefill_step=4, on_event=lambda event: num_calls.append(len(model.calls)))
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
    run_all(llm, [limited("me", 60), *long], FakeModel(), prefill_step=step, on_event=events.append)
    gaps = tokens_between_tokens(events, 0)
    assert max(gaps) == step
    assert sum(gaps) == min(300, step * sum(gap > 0 for gap in gaps))


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
    # The first two need not wait, nor does the one that arrives when all are done.
    assert done[1].timing.ttft_s < 0.3
    assert done[2].timing.ttft_s < 0.4


@pytest.mark.task("2.7.7")
def test_time_before_the_run_is_not_counted(llm):
    clock = FakeClock(tick=1e-4, start=1e6)
    done = llm.batch_generate(FakeModel(), TOKENIZER, [limited("ab", 2)], clock=clock)
    assert done[0].timing.arrival_s == pytest.approx(1e6, abs=0.01)
