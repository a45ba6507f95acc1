"""Day 2.7: the loop with a chunk policy, with metrics, with prompts that it must refuse."""

from dataclasses import dataclass, field

import pytest
from tests.helpers.fakes import FakeClock, FakeModel, live_requests
from tests.helpers.toy import ByteTokenizer

from tiny_llm_lab.types import (
    DoneEvent,
    PrefillEvent,
    PrefillMetrics,
    Prompt,
    SamplingParams,
    TokenEvent,
)

CHUNK_S, DECODE_S = 2.0, 0.25


def text_of(length, seed=0):
    return bytes(97 + (7 * i + 3 * seed) % 26 for i in range(length)).decode()


def limited(prompt, max_tokens, **settings):
    return Prompt(prompt, SamplingParams(max_tokens=max_tokens, ignore_eos=True), **settings)


def timed_model(clock, **settings):
    """A model whose chunks take 2 s and whose decode steps take 0.25 s."""

    def take_time(call):
        clock.now += DECODE_S if call.batched else CHUNK_S

    return FakeModel(before_call=take_time, **settings)


def run_phases(llm, prompts, model=None, **settings):
    """The three phases over and over, until no work is left: task 2.7.7 by hand."""
    settings = {"clock": FakeClock(), "max_seq_len": 512, **settings}
    run = llm.BatchGenerator(model or FakeModel(), ByteTokenizer(), prompts, **settings)
    for _ in range(2000):
        if not run.has_work_remaining():
            run.release()
            return run.collect_results()
        run.handle_prefill_phase()
        run.handle_decode_phase()
        run.move_prefill_to_decode()
    raise AssertionError("2,000 iterations: does this run ever end?")


def run_all(llm, prompts, model=None, **settings):
    settings = {"clock": FakeClock(), "max_seq_len": 512, **settings}
    return llm.batch_generate(model or FakeModel(), ByteTokenizer(), prompts, **settings)


@dataclass
class Policy:
    """Answers `sizes` in turn, the last one for ever, and remembers what it was asked and told."""

    sizes: list[int] = field(default_factory=lambda: [4])
    asked: list[tuple[int, float]] = field(default_factory=list)
    told: list[tuple[int, float]] = field(default_factory=list)

    def select_chunk_size(self, base_chunk_size, decode_pressure):
        self.asked.append((base_chunk_size, decode_pressure))
        return self.sizes.pop(0) if len(self.sizes) > 1 else self.sizes[0]

    def record_chunk(self, chunk_size, chunk_time):
        self.told.append((chunk_size, chunk_time))


def chunks_of(events, prompt_idx):
    ends = [
        e.num_computed_tokens for e in events if isinstance(e, PrefillEvent) and e.prompt_idx == prompt_idx
    ]
    return [end - start for start, end in zip([0, *ends], ends, strict=False)]


# A chunk policy


@pytest.mark.task("2.7.4")
def test_the_policy_sets_the_size_of_every_chunk(llm):
    events, policy = [], Policy([3, 1, 5, 2])
    run_phases(llm, [limited(text_of(12), 1)], prefill_step=8, chunk_policy=policy, on_event=events.append)
    assert chunks_of(events, 0) == [3, 1, 5, 2, 1]


@pytest.mark.task("2.7.4")
def test_the_policy_is_asked_with_the_share_of_slots_that_decode(llm):
    policy = Policy([4])
    prompts = [limited("a", 60), limited("b", 60), limited("c", 60), limited("d", 60)]
    run_phases(llm, prompts, prefill_step=7, batch_size=4, chunk_policy=policy)
    assert policy.asked == [(7, 0.0), (7, 0.25), (7, 0.5), (7, 0.75)]


@pytest.mark.task("2.7.4")
def test_the_policy_is_told_how_long_its_chunks_took(llm):
    policy, clock = Policy([4]), FakeClock()
    prompts = [limited(text_of(10), 3), limited(text_of(5, 1), 3)]
    run_phases(llm, prompts, timed_model(clock), clock=clock, chunk_policy=policy)
    assert policy.told == [(4, CHUNK_S), (4, CHUNK_S), (2, CHUNK_S), (4, CHUNK_S), (1, CHUNK_S)]


@pytest.mark.task("2.7.4")
def test_a_pause_lets_the_decodes_go_on(llm):
    events, policy = [], Policy([2, 4, 0, 0, 0, 4])
    prompts = [limited("me", 40), limited(text_of(12), 1)]
    run_phases(llm, prompts, chunk_policy=policy, on_event=events.append)
    assert chunks_of(events, 1) == [4, 4, 4]
    first, second = [
        i for i, e in enumerate(events) if isinstance(e, PrefillEvent) and e.num_computed_tokens in (4, 8)
    ]
    tokens = [e for e in events[first:second] if isinstance(e, TokenEvent)]
    assert len(tokens) == 4, "one after the chunk, and one for each of three pauses"


@pytest.mark.task("2.7.4")
def test_without_decodes_a_pause_is_a_chunk_of_one_token(llm):
    # A pause helps decodes only: without any the loop would stand still.
    events = []
    done = run_phases(llm, [limited(text_of(5), 2)], chunk_policy=Policy([0]), on_event=events.append)
    assert chunks_of(events, 0) == [1, 1, 1, 1, 1]
    assert done[0].finish_reason == "length"


@pytest.mark.task("2.7.4")
@pytest.mark.parametrize("size", [1, 3, 64, 1000])
def test_no_policy_changes_an_answer(llm, size):
    model = FakeModel()
    prompts = [limited(text_of(length, i), 5) for i, length in enumerate((3, 40, 1, 33))]
    done = run_phases(llm, prompts, model, batch_size=2, chunk_policy=Policy([2, 1, 0, 7, 0, size]))
    for completion, prompt in zip(done, prompts, strict=True):
        assert list(completion.token_ids) == model.answer_to(prompt.content.encode(), 5)
    assert live_requests(model) == 0


@pytest.mark.task("2.7.4")
def test_a_step_of_none_follows_the_rule_of_thumb(llm):
    events = []
    prompts = [limited("me", 60), limited(text_of(300), 1)]
    run_phases(llm, prompts, batch_size=5, prefill_step=None, on_event=events.append)
    assert chunks_of(events, 1) == [128, 128, 44]
    events.clear()
    prompts = [*(limited(f"m{i}", 90) for i in range(4)), limited(text_of(300), 1)]
    run_phases(llm, prompts, batch_size=5, prefill_step=None, on_event=events.append)
    assert chunks_of(events, 4) == [64, 64, 64, 64, 44], "four of five slots decode"
    events.clear()
    run_phases(llm, [limited(text_of(2049), 1)], max_seq_len=4000, prefill_step=None, on_event=events.append)
    assert chunks_of(events, 0) == [256] * 8 + [1]


@pytest.mark.task("2.7.4")
def test_a_step_of_none_goes_to_the_policy_as_its_base(llm):
    policy = Policy([5])
    run_phases(llm, [limited(text_of(10), 1)], prefill_step=None, chunk_policy=policy)
    assert policy.asked == [(128, 0.0), (128, 0.0)]


@pytest.mark.task("2.7.4")
def test_prefill_memory_bounds_a_chunk(llm):
    def largest(memory):
        events = []
        run_phases(
            llm, [limited(text_of(200), 1)], prefill_step=None, prefill_memory=memory, on_event=events.append
        )
        return max(chunks_of(events, 0))

    assert largest(None) == 128
    assert largest(10**9) == 128
    # A token takes at least its keys and values of all layers in float32.
    config = FakeModel().config
    kv = 4 * 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim
    sizes = [largest(kv * 10 * factor) for factor in (1, 2, 4)]
    assert 1 <= sizes[0] <= 10
    assert sizes == sorted(set(sizes)), "more memory, larger chunks"


# A pause of the adaptive chunker


def slow_chunker(llm, max_pauses):
    """128 tokens took a second; a chunk may take 50 ms."""
    made = llm.AdaptiveChunker(0.05, max_pauses)
    made.record_chunk(128, 1.0)
    return made


@pytest.mark.task("2.7.5")
def test_a_chunker_pauses_at_most_max_pauses_times_in_a_row(llm):
    made = slow_chunker(llm, 2)
    assert [made.select_chunk_size(128, 0.8) for _ in range(7)] == [0, 0, 64, 0, 0, 64, 0]


@pytest.mark.task("2.7.5")
def test_a_chunker_does_not_pause_unless_it_may(llm):
    assert [slow_chunker(llm, 0).select_chunk_size(128, 1.0) for _ in range(3)] == [64] * 3
    assert llm.AdaptiveChunker(0.05).max_pauses == 0


@pytest.mark.task("2.7.5")
def test_low_pressure_ends_a_row_of_pauses(llm):
    made = slow_chunker(llm, 2)
    sizes = [made.select_chunk_size(128, pressure) for pressure in (1.0, 0.79, 1.0, 1.0, 1.0)]
    assert sizes == [0, 128, 0, 0, 64]


@pytest.mark.task("2.7.5")
def test_a_chunk_that_meets_the_target_is_not_paused_for(llm):
    made = llm.AdaptiveChunker(0.05, 9)
    assert made.select_chunk_size(128, 1.0) == 64, "nothing is predicted before a chunk is recorded"
    made.record_chunk(64, 0.05)
    assert made.select_chunk_size(128, 1.0) == 64, "exactly on time"
    made.record_chunk(64, 0.051)
    assert made.select_chunk_size(128, 1.0) == 0


@pytest.mark.task("2.7.5")
def test_a_prompt_is_computed_however_slow_its_chunks_are(llm):
    events, clock = [], FakeClock()
    prompts = [*(limited(f"m{i}", 100) for i in range(4)), limited(text_of(200), 2)]
    chunker = llm.AdaptiveChunker(0.001, max_pauses=3)
    done = run_all(
        llm,
        prompts,
        timed_model(clock),
        clock=clock,
        batch_size=5,
        chunk_policy=chunker,
        on_event=events.append,
    )
    assert chunks_of(events, 4) == [64, 64, 64, 8]
    assert [completion.finish_reason for completion in done] == ["length"] * 5
    first, second = [
        i for i, e in enumerate(events) if isinstance(e, PrefillEvent) and e.num_computed_tokens in (64, 128)
    ]
    steps = sum(isinstance(e, TokenEvent) and e.prompt_idx == 0 for e in events[first:second])
    assert steps == 4, "one decode step beside the chunk and three alone"


# Metrics


@pytest.mark.task("2.7.4")
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

    def look(self, *args, **settings):
        generator(self, *args, **settings)
        made.append(self.batch_size)

    monkeypatch.setattr(llm.BatchGenerator, "__init__", look)
    run_all(llm, [limited(text_of(3, i), 2) for i in range(num_prompts)], batch_size=batch_size)
    assert made == [rows]


@pytest.mark.task("2.7.7")
def test_refused_prompts_are_reported_once_on_stderr(llm, capsys):
    run_all(llm, [text_of(20), "ok", text_of(30)], max_seq_len=16, sampling=SamplingParams(max_tokens=1))
    said = capsys.readouterr()
    assert said.out == ""
    (line,) = said.err.splitlines()
    assert line.startswith("2 of 3 prompts refused: ")
    assert "20 tokens" in line
    assert "max_seq_len is 16" in line


@pytest.mark.task("2.7.7")
def test_nothing_is_reported_when_all_went_well_or_events_tell_it(llm, capsys):
    run_all(llm, [limited("ab", 1)])
    run_all(llm, ["", text_of(20)], max_seq_len=16, on_event=lambda event: None)
    assert capsys.readouterr().err == ""


@pytest.mark.task("2.7.4")
def test_a_refused_prompt_tells_the_number_of_its_tokens(llm):
    events = []
    done = run_phases(llm, [text_of(20), "", [1, 2, 9999]], max_seq_len=16, on_event=events.append)
    assert [completion.num_prompt_tokens for completion in done] == [20, 0, 0]
    assert [event.completion for event in events] == done


@pytest.mark.task("2.7.4")
def test_waiting_for_an_arrival_is_one_short_sleep(llm, monkeypatch):
    clock = FakeClock()
    clock.take_over(monkeypatch, llm.BatchGenerator)
    run = llm.BatchGenerator(FakeModel(), ByteTokenizer(), [Prompt("a", arrival_s=2.0)], clock=clock)
    run.wait_for_arrival()
    (nap,) = clock.naps
    assert 0 < nap <= 0.1, "short: an interrupt must not wait"


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
