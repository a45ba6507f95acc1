"""Day 2.7: the loop with a chunk policy, and the pauses of one."""

from dataclasses import dataclass, field

import pytest
from tests.helpers.fakes import FakeModel
from tests.helpers.phases import limited, run_phases, text_of

from tiny_llm_lab.types import PrefillEvent


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
def test_a_chunker_does_not_pause_unless_it_may(llm):
    assert [slow_chunker(llm, 0).select_chunk_size(128, 1.0) for _ in range(3)] == [64] * 3
    assert llm.AdaptiveChunker(0.05).max_pauses == 0


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
