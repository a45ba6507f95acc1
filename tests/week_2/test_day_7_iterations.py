"""Day 2.7: the loop's iterations, with metrics and with prompts that it must refuse."""

import pytest
from tests.helpers.fakes import FakeClock, FakeModel
from tests.helpers.phases import CHUNK_S, DECODE_S, limited, run_all, run_phases, text_of, timed_model
from tests.helpers.toy import ByteTokenizer

from tiny_llm_lab.types import BatchSettings, DoneEvent, PrefillEvent, PrefillMetrics, Prompt, SamplingParams

# Metrics


@pytest.mark.task("2.7.6")
def test_metrics_count_what_the_loop_did(llm):
    clock, metrics = FakeClock(), llm.ChunkedPrefillMetrics()
    model = timed_model(clock)
    prompts = [limited(text_of(10), 4), limited(text_of(3, 1), 6), "", limited(text_of(7, 2), 1)]
    run_phases(llm, prompts, model, clock=clock, batch_size=2, prefill_step=4, metrics=metrics)
    assert metrics.prefill_chunks_processed == len(model.prefill_calls()) == 3 + 1 + 2
    assert metrics.prefill_tokens_processed == 10 + 3 + 7
    assert metrics.decode_requests_served == len(model.decode_calls())
    assert metrics.avg_chunk_time == pytest.approx(CHUNK_S)
    assert metrics.avg_decode_time == pytest.approx(DECODE_S)


@pytest.mark.task("2.7.4")
def test_metrics_are_told_of_chunks_and_decodes_in_their_order(llm):
    class Diary(PrefillMetrics):
        def __init__(self):
            self.entries = []

        def record_prefill_chunk(self, chunk_time, chunk_size):
            self.entries.append((chunk_size, chunk_time))

        def record_decode_step(self, decode_time):
            self.entries.append(("decode", decode_time))

    clock, diary = FakeClock(), Diary()
    prompts = [limited("ab", 3), limited(text_of(5), 1)]
    run_phases(llm, prompts, timed_model(clock), clock=clock, batch_size=2, prefill_step=4, metrics=diary)
    decode = ("decode", DECODE_S)
    assert diary.entries == [(2, CHUNK_S), (4, CHUNK_S), decode, (1, CHUNK_S), decode]


# The loop


@pytest.mark.task("2.7.7")
def test_a_request_joins_behind_the_decode_phase(llm):
    # Its first token comes with its last chunk; the next one comes an iteration later, after another's chunk.
    events = []
    prompts = [limited("ab", 4), limited(text_of(3), 3)]
    run_all(llm, prompts, batch_size=2, prefill_step=4, on_event=events.append)
    told = [("chunk" if isinstance(e, PrefillEvent) else "token", e.prompt_idx) for e in events[:6]
            if not isinstance(e, DoneEvent)]  # fmt: skip
    assert told == [("chunk", 0), ("token", 0), ("chunk", 1), ("token", 1), ("token", 0), ("token", 0)]


@pytest.mark.task("2.7.7")
@pytest.mark.parametrize(("num_prompts", "batch_size", "rows"), [(2, 1000, 2), (3, 2, 2), (0, 9, 1)])
def test_rows_never_exceed_the_prompts(llm, monkeypatch, num_prompts, batch_size, rows):
    # A row costs memory whether a request sits in it or not.
    made = []
    generator = llm.BatchGenerator.__init__

    def look(self, *args):
        generator(self, *args)
        made.append(self.settings.batch_size)

    monkeypatch.setattr(llm.BatchGenerator, "__init__", look)
    run_all(llm, [limited(text_of(3, i), 2) for i in range(num_prompts)], batch_size=batch_size)
    assert made == [rows], (
        f"{num_prompts} prompts and a batch_size of {batch_size}: the generator needs {rows} rows, got {made}"
    )


@pytest.mark.task("2.7.7")
def test_refused_prompts_are_reported_once_on_stderr(llm, capsys):
    run_all(llm, [text_of(20), "ok", text_of(30)], max_seq_len=16, sampling=SamplingParams(max_tokens=1))
    said = capsys.readouterr()
    assert said.out == ""
    (line,) = said.err.splitlines()
    assert line.startswith("2 of 3 prompts were refused: ")
    assert "30 tokens" in line, "the cure for the longest prompt serves the others too"
    assert "max_seq_len is 16" in line
    assert "30 or more" in line


@pytest.mark.task("2.7.7")
def test_nothing_is_reported_when_all_went_well_or_events_tell_it(llm, capsys):
    run_all(llm, [limited("ab", 1)])
    run_all(llm, ["", text_of(20)], max_seq_len=16, on_event=lambda event: None)
    assert capsys.readouterr().err == ""


@pytest.mark.task("2.7.4")
def test_a_refused_prompt_tells_the_number_of_its_tokens(llm):
    events = []
    done = run_phases(llm, [text_of(20), "", [1, 2, 9999]], max_seq_len=16, on_event=events.append)
    assert [completion.num_prompt_tokens for completion in done] == [20, 0, 0], (
        "num_prompt_tokens of a prompt of 20 tokens that is too long, of an empty one, and of one with a "
        "token outside the vocabulary"
    )
    assert [event.completion for event in events] == done


@pytest.mark.task("2.7.4")
def test_waiting_for_an_arrival_is_one_short_sleep(llm, monkeypatch):
    clock = FakeClock()
    clock.take_over(monkeypatch, llm.BatchGenerator)
    run = llm.BatchGenerator(
        FakeModel(), ByteTokenizer(), [Prompt("a", arrival_s=2.0)], BatchSettings(clock=clock)
    )
    run.wait_for_arrival()
    (nap,) = clock.naps
    assert 0 < nap <= 0.1, "short: an interrupt must not wait"
    clock.now = 3.0
    run.wait_for_arrival()
    llm.BatchGenerator(FakeModel(), ByteTokenizer(), [], BatchSettings(clock=clock)).wait_for_arrival()
    assert all(nap <= 0 for nap in clock.naps[1:]), "it has arrived; and where no prompt waits nobody sleeps"


@pytest.mark.task("2.7.4")
def test_waiting_for_a_slot_counts_as_latency(llm):
    clock = FakeClock()
    prompts = [limited("ab", 3), limited("cd", 1)]
    first, second = run_phases(llm, prompts, timed_model(clock), clock=clock, batch_size=1)
    assert (first.timing.arrival_s, second.timing.arrival_s) == (0.0, 0.0), "both were there from the start"
    assert second.timing.ttft_s == 2 * CHUNK_S + 2 * DECODE_S


@pytest.mark.task("2.7.4")
@pytest.mark.parametrize("prompt", [None, 7, "a\ud800b", [1.5, 2.0], ["a"], [None], [-1], [258]])
def test_what_is_no_prompt_is_an_error_of_its_own(llm, prompt):
    model = FakeModel()
    done = run_phases(llm, [limited("ab", 3), Prompt(prompt), limited("cd", 3)], model)
    assert [completion.finish_reason for completion in done] == ["length", "error", "length"]
    assert done[1].error
    assert "\n" not in done[1].error
    assert [list(done[i].token_ids) for i in (0, 2)] == [model.answer_to(text, 3) for text in (b"ab", b"cd")]
