"""Day 4.4: states that are cut back to some of their tokens."""

import mlx.core as mx
import numpy as np
import pytest
from tests.helpers.drafting import Texts, expected_draft
from tests.helpers.hybrid_layers import CONFIG, SIZES, E, delta_net, whole_numbers
from tests.helpers.hybrids import HYBRID, hybrid_weights
from tests.helpers.toy import ByteTokenizer

from tiny_llm_lab.types import (
    Draft,
    EngineOptions,
    Prompt,
    SamplingParams,
    SchedulerConfig,
    TextProposer,
    TokenEvent,
    UserError,
)

pytestmark = pytest.mark.task("4.4.5")


def test_a_state_forgets_all_tokens_or_none_unless_it_was_asked_to_keep_them(llm):
    cache = llm.SequenceState(SIZES)
    cache.rewind(0)
    delta_net(llm)(whole_numbers(0, 1, 5, E), [0], cache)
    assert cache.nbytes == 4 * (4 * 16 * 24 + 3 * SIZES.conv_dim)
    cache.rewind(0)
    assert cache.offsets(1) == [5]
    with pytest.raises(UserError, match="cannot be cut back"):
        cache.rewind(2)
    for wrong in (-1, 6):
        with pytest.raises(ValueError, match="cannot rewind"):
            cache.rewind(wrong)
    cache.rewind(5)
    assert (cache.offset, cache.nbytes) == (0, 0)
    with pytest.raises(ValueError):
        delta_net(llm)(whole_numbers(0, 1, 1, E), [0], llm.BatchingState(2))


@pytest.mark.parametrize("num_rows", [1, 2])
@pytest.mark.parametrize("seed", range(6))
def test_a_state_that_was_cut_back_is_the_one_of_that_moment(llm, seed, num_rows):
    """To the bit, after steps of any length and several cuts in turn, against a state that saw no more."""
    rng, mixer, most = np.random.default_rng(seed), delta_net(llm), 7
    cache, text = llm.SequenceState(SIZES), whole_numbers(60 + seed, num_rows, 0, E)
    cache.allow_rewind(most)
    allowed = 0
    for step in range(8):
        new = whole_numbers(100 * seed + step, num_rows, int(rng.integers(1, 12)), E)
        mixer(new, cache.offsets(num_rows), cache)
        text = mx.concatenate([text, new], axis=1)
        allowed = min(most, allowed + new.shape[1])
        back = int(rng.integers(0, allowed + 1))
        cache.rewind(back)
        text, allowed = text[:, : text.shape[1] - back], allowed - back
        assert cache.offset == text.shape[1]
        want = llm.SequenceState(SIZES)
        if cache.offset:
            mixer(text, [0] * num_rows, want)
        for got, other in zip(cache.states, want.states, strict=True):
            assert all(mx.array_equal(a, b) for a, b in zip(got, other, strict=True))


def test_of_a_long_chunk_only_the_end_is_kept(llm):
    """A chunk of a draft model may have hundreds of tokens, and few of them are ever taken back."""
    mixer, x, cache = delta_net(llm), whole_numbers(3, 1, 1500, E), llm.SequenceState(SIZES)
    cache.allow_rewind(1)
    got = mixer(x, [0], cache)
    assert mx.array_equal(got, mixer(x, [0], mixer.create_cache()))
    with pytest.raises(UserError, match="cannot be cut back"):
        cache.rewind(2)
    cache.rewind(1)
    assert cache.offset == 1499


def test_keys_and_values_can_always_be_taken_back(llm):
    cache, pages = llm.TinyKvFullCache(), llm.PagedKvCache(CONFIG, 2)
    cache.allow_rewind(3)
    pages.cut_back(0, 5)
    assert cache.offset == 0


PROMPT = [5, 9, 5, 9, 5, 9, 7, 5, 9, 5, 9, 5]
GREEDY = SamplingParams(max_tokens=24, ignore_eos=True)


@pytest.fixture
def model(llm):
    return llm.Qwen(HYBRID, hybrid_weights(HYBRID), llm.ArrayOps())


@pytest.fixture
def want(llm, model):
    events = llm.stream_generate(model, ByteTokenizer(), PROMPT, GREEDY)
    return tuple(
        each.token_id for each in events if isinstance(each, TokenEvent) and each.token_id is not None
    )


class Half(TextProposer):
    """Knows the answer, and drafts every second token of it wrong."""

    def __init__(self, answer):
        self.text, self.drafted = [*PROMPT, *answer], 0

    def look_up(self, token_ids, request_id=None):
        start = len(token_ids)
        draft = [(token + i % 2) % 250 for i, token in enumerate(self.text[start : start + 4])]
        self.drafted += len(draft)
        return Draft(tuple(draft))


def test_the_loop_leaves_hybrids_to_the_engine(llm, model, want):
    with pytest.raises(UserError, match="engine"):
        next(llm.speculative_generate(model, ByteTokenizer(), PROMPT, Half(want), GREEDY))


def test_the_engine_gives_the_answer_without_drafts(llm, model, want):
    proposer = Half(want)
    options = EngineOptions(num_blocks=20, block_size=4, proposer=proposer)
    engine = llm.Engine(model, ByteTokenizer(), SchedulerConfig(), options)
    (done,) = engine.generate([Prompt(PROMPT, GREEDY)])
    assert done.token_ids == want, "rejected tokens are still in a state"
    assert 0 < engine.core.spec_stats.num_accepted_tokens < proposer.drafted


@pytest.mark.parametrize("chunk", [3, 100])
def test_a_draft_model_with_states_drafts_what_the_whole_text_says(llm, model, chunk):
    """After accepted and rejected drafts, and after tokens that had no draft."""
    texts = Texts(llm, llm.DraftModelProposer(model, 3))
    texts.start("a", text := list(PROMPT), chunk=chunk)
    drafter = llm.Drafter(llm.Sampler(SamplingParams()))
    for num_accepted in (0, 3, 1, None, None, 2, None, 3):
        if num_accepted is not None:
            (draft,) = texts.draft("a")
            assert list(draft.token_ids) == expected_draft(model, text, 3, drafter, 260), f"after {text}"
        text = texts.verify("a", num_accepted or 0, 77)
