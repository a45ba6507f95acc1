"""Day 2.7: the phases, the loop, its policies. Chunking may change when things happen, never what is said."""

from dataclasses import dataclass, field

import pytest
from tests.helpers.any_batch import AnyBatch
from tests.helpers.chunk_burst import SIZES, TARGET_S, burst, outcome
from tests.helpers.fakes import FakeClock, FakeModel
from tests.helpers.phases import TOKENIZER, limited, run_all, run_phases, text_of

from tiny_llm_lab.types import BatchSettings, PrefillEvent, Prompt, SamplingParams, UserError

# The task of each test that names no other.
pytestmark = pytest.mark.task("2.7.7")


def test_sampling_serves_prompts_that_bring_none(llm):
    own = SamplingParams(max_tokens=2)
    done = run_all(llm, ["abc", Prompt("def", own), [97]], FakeModel(), sampling=SamplingParams(max_tokens=5))
    assert [len(completion.token_ids) for completion in done] == [5, 2, 5]


@pytest.mark.parametrize(
    "settings", [{"batch_size": 0}, {"prefill_step": 0}, {"max_seq_len": 0}, {"max_seq_len": 5000}]
)
def test_settings_out_of_range_are_rejected(llm, settings):
    with pytest.raises(UserError):
        run_all(llm, ["abc"], FakeModel(), **settings)


def test_one_string_is_no_list_of_prompts(llm):
    with pytest.raises(UserError):
        run_all(llm, "abc", FakeModel())


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


def test_refused_prompts_are_reported_once_on_stderr(llm, capsys):
    run_all(llm, [text_of(20), "ok", text_of(30)], max_seq_len=16, sampling=SamplingParams(max_tokens=1))
    said = capsys.readouterr()
    assert said.out == ""
    (line,) = said.err.splitlines()
    assert line.startswith("2 of 3 prompts were refused: ")
    assert "30 tokens" in line, "the cure for the longest prompt serves the others too"
    assert "max_seq_len is 16" in line
    assert "30 or more" in line


def test_nothing_is_reported_when_all_went_well_or_events_tell_it(llm, capsys):
    run_all(llm, [limited("ab", 1)])
    run_all(llm, ["", text_of(20)], max_seq_len=16, on_event=lambda event: None)
    assert capsys.readouterr().err == ""


@pytest.mark.task("2.7.4")
def test_waiting_for_an_arrival_is_one_short_sleep(llm, monkeypatch):
    clock = FakeClock()
    clock.take_over(monkeypatch, llm.BatchGenerator)
    run = llm.BatchGenerator(FakeModel(), TOKENIZER, [Prompt("a", arrival_s=2.0)], BatchSettings(clock=clock))
    run.wait_for_arrival()
    (nap,) = clock.naps
    assert 0 < nap <= 0.1, "short: an interrupt must not wait"
    clock.now = 3.0
    run.wait_for_arrival()
    llm.BatchGenerator(FakeModel(), TOKENIZER, [], BatchSettings(clock=clock)).wait_for_arrival()
    assert all(nap <= 0 for nap in clock.naps[1:]), "it has arrived; and where no prompt waits nobody sleeps"


# The phases and the loop with all of a run drawn


@pytest.mark.task("2.7.4")
@pytest.mark.parametrize("seed", range(30))
def test_any_run_of_the_phases(llm, seed):
    AnyBatch(seed).run(run_phases, llm)


@pytest.mark.parametrize("seed", range(30))
def test_any_run_of_the_loop(llm, seed):
    AnyBatch(seed).run(run_all, llm)


@pytest.mark.parametrize("seed", range(20))
def test_memory_is_given_back_whichever_callback_fails(llm, seed):
    AnyBatch(seed).run(run_all, llm, fails_at=1 + 2 * seed)


# The loop with a chunk policy, and the pauses of one


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


@pytest.mark.task("2.7.5")
def test_a_step_of_none_goes_to_the_policy_as_its_base(llm):
    policy = Policy([5])
    run_phases(llm, [limited(text_of(10), 1)], prefill_step=None, chunk_policy=policy)
    assert policy.asked == [(128, 0.0), (128, 0.0)]


@pytest.mark.task("2.7.5")
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
    assert 1 <= sizes[0] <= 10, (
        f"prefill_memory holds the keys and values of 10 tokens, but a chunk had {sizes[0]}: which "
        "bytes_per_token did select_optimal_chunk_size get?"
    )
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
def test_low_pressure_ends_a_row_of_pauses(llm):
    made = slow_chunker(llm, 2)
    sizes = {
        f"{i}: pressure {p}": made.select_chunk_size(128, p) for i, p in enumerate((1.0, 0.79, 1.0, 1.0, 1.0))
    }
    assert list(sizes.values()) == [0, 128, 0, 0, 64], (
        f"with 2 pauses allowed in a row, the sizes were {sizes}: low pressure begins a new row"
    )


@pytest.mark.task("2.7.5")
def test_a_chunk_that_meets_the_target_is_not_paused_for(llm):
    made = llm.AdaptiveChunker(0.05, 9)
    assert made.select_chunk_size(128, 1.0) == 64, "nothing is predicted before a chunk is recorded"
    made.record_chunk(64, 0.05)
    assert made.select_chunk_size(128, 1.0) == 64, "exactly on time"
    made.record_chunk(64, 0.051)
    assert made.select_chunk_size(128, 1.0) == 0


# Chunk sizes on a bursty load, in virtual time; what the adaptive chunker wins and loses


@pytest.fixture(scope="module")
def outcomes(llm):
    """outcomes(policy, batch_size): each run once."""
    known = {}

    def of(policy, batch_size=10):
        if (policy, batch_size) not in known:
            known[policy, batch_size] = outcome(llm, str(policy), burst(), batch_size)
        return known[policy, batch_size]

    return of


def test_a_larger_chunk_trades_gaps_for_first_tokens(outcomes):
    found = [outcomes(size) for size in SIZES]
    assert [each.itl_p99 for each in found] == sorted(each.itl_p99 for each in found)
    for falling in ("ttft", "total"):
        numbers = [getattr(each, falling) for each in found]
        assert numbers == sorted(numbers, reverse=True), falling


def test_the_adaptive_chunker_finds_a_size_that_meets_its_target(outcomes):
    adaptive, base = outcomes("adaptive"), outcomes(128)
    assert adaptive.itl_max <= 1e3 * TARGET_S, "gaps, in ms"
    assert set(adaptive.sizes) == {64, 256}, "twice the base; half of it while eight of ten rows decode"
    assert adaptive.ttft < 0.9 * base.ttft and adaptive.total < base.total


def test_it_does_not_beat_the_best_fixed_size(outcomes):
    meeting = [outcomes(size) for size in SIZES if outcomes(size).itl_max <= 1e3 * TARGET_S]
    best = min(meeting, key=lambda each: each.ttft)
    assert best == outcomes(256)
    assert outcomes("adaptive").ttft >= best.ttft and outcomes("adaptive").total >= best.total


@pytest.mark.long
def test_with_few_rows_both_rules_see_pressure_all_the_time(outcomes):
    # Six of seven rows decode. 256 would meet the target, but both rules ask for 64 without looking.
    assert outcomes("adaptive", 7) == outcomes("table", 7) == outcomes(64, 7)
    assert outcomes("adaptive", 7).ttft > 1.3 * outcomes(256, 7).ttft
