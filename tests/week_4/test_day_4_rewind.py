"""Day 4.4: states that are cut back to some of their tokens."""

import mlx.core as mx
import pytest
from tests.helpers.drafting import Texts, expected_draft
from tests.helpers.hybrid_layers import CONFIG
from tests.helpers.hybrids import HYBRID, hybrid_weights
from tests.helpers.toy import ByteTokenizer

from tiny_llm_lab.types import (
    Draft,
    EngineOptions,
    Prompt,
    Proposer,
    SamplingParams,
    SchedulerConfig,
    TokenEvent,
    UserError,
)

pytestmark = pytest.mark.task("4.4.5")


def test_keys_and_values_can_always_be_taken_back(llm):
    pages = llm.PagedKvCache(CONFIG, 2)
    before = pages.pools
    pages.cut_back(0, 5)
    assert all(mx.array_equal(a, b) for a, b in zip(pages.pools, before, strict=True))


def test_a_moment_is_the_state_after_any_of_its_tokens(llm):
    lengths = []

    def rule(rows, states, starts):
        lengths.append(starts[-1])
        return rows[0], [(states[0][0] + mx.sum(rows[0]), states[0][1])]

    moment = llm.Moment(rule, [mx.arange(1.0, 5.0)], (mx.array(7.0), mx.array(0.0)))
    assert [moment.state_after(n)[0].item() for n in range(5)] == [7, 8, 10, 13, 17]
    assert lengths == [1, 2, 3, 4], "for no token the rule does not run"


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


class Half(Proposer):
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
