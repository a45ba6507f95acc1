"""Day 3.9: drafts in the engine, beside what else it does with tokens."""

import pytest
from tests.helpers.fake_clock import FakeClock
from tests.helpers.passes import Passes
from tests.helpers.serving import logprobs_of, make_engine, serve
from tests.helpers.tolerance import F32_MODEL, assert_close
from tests.helpers.toy import random_tokens, toy_model

from tiny_llm_lab.types import AllDrafts, Draft, Prompt, Proposer, SamplingParams, SchedulerConfig

pytestmark = pytest.mark.task("3.9.6")


class Prompter(Proposer):
    """Drafts what the answer will be, with a mistake in every third token."""

    def __init__(self, tokens):
        self.tokens = tokens

    def look_up(self, token_ids, request_id=None):
        known = len(token_ids)
        wrong = [(token + (known + i) % 3 // 2) % 256 for i, token in enumerate(self.tokens[known:])]
        return Draft(tuple(wrong[:4]))


def test_every_accepted_token_has_its_own(llm):
    model, sampling = toy_model(llm), SamplingParams(max_tokens=12, ignore_eos=True, logprobs=1)
    prompt = Prompt(random_tokens(3, 40).tolist(), sampling)
    alone = logprobs_of(make_engine(llm, model), prompt)
    known = [*prompt.content, *(each.token_id for each in alone)]
    engine = make_engine(llm, model, proposer=Prompter(known))
    drafted = logprobs_of(engine, prompt)
    assert engine.core.spec_stats.num_accepted_tokens > 3, "no draft token was accepted: this shows nothing"
    assert [each.token_id for each in drafted] == [each.token_id for each in alone]
    assert_close([each.logprob for each in drafted], [each.logprob for each in alone], F32_MODEL)


REPEATING = [*range(40, 60)] * 3
ANSWERS = {
    "greedy": SamplingParams(max_tokens=40, ignore_eos=True),
    "drawn": SamplingParams(max_tokens=40, ignore_eos=True, temperature=0.7, top_k=3, seed=5),
}


@pytest.mark.task("3.9.7")
@pytest.mark.parametrize("sampling", ANSWERS.values(), ids=ANSWERS)
@pytest.mark.parametrize("is_flat", [False, True], ids=["toy", "flat logits"])
@pytest.mark.parametrize("num_tokens", [2, 8])
def test_looked_up_drafts_change_no_answer_on_text_that_repeats(llm, sampling, is_flat, num_tokens):
    model = Passes(toy_model(llm), change=lambda logits: logits * 0 if is_flat else logits)
    prompt = Prompt(REPEATING, sampling)
    plain = serve(make_engine(llm, model), [prompt])[0].token_ids
    for options in ({}, {"draft_gate": llm.DraftGate()}):
        proposer = llm.NgramProposer(num_tokens=num_tokens)
        engine = make_engine(llm, model, proposer=proposer, **options)
        assert serve(engine, [prompt])[0].token_ids == plain
        assert engine.core.spec_stats.num_draft_tokens > 0, "nothing was drafted: this test shows nothing"


@pytest.mark.parametrize("is_drafting", [True, False])
def test_steps_are_launched_early_while_nothing_is_drafted(llm, is_drafting):
    class Gate(AllDrafts):
        def length(self, request_id, most):
            return most if is_drafting else 0

    options = {"draft_gate": Gate(), "async_scheduling": True}
    engine = make_engine(llm, toy_model(llm), proposer=Prompter([]), **options)
    scheduler = engine.core.scheduler
    launched, schedule_next = [], scheduler.schedule_next
    scheduler.schedule_next = lambda plan: launched.append(plan) or schedule_next(plan)
    engine.generate([Prompt(random_tokens(3, 40).tolist(), SamplingParams(max_tokens=5, ignore_eos=True))])
    assert bool(launched) != is_drafting


def test_a_prompt_is_read_by_the_draft_model_in_the_same_chunks(llm):
    passes, config = (
        Passes(toy_model(llm, seed=1)),
        SchedulerConfig(max_num_batched_tokens=24, max_num_seqs=4),
    )
    engine = make_engine(llm, toy_model(llm), config, proposer=llm.DraftModelProposer(passes, 3))
    engine.add("a", random_tokens(3, 150).tolist(), SamplingParams(max_tokens=3, ignore_eos=True))
    for num_read in range(24, 150, 24):
        engine.step()
        assert sum(passes.rows) == num_read, "in the step that computes a chunk"
    while engine.has_requests:
        engine.step()
    assert max(passes.rows) == 24, "never the whole prompt"


def test_what_the_prefix_cache_finds_the_draft_model_has_too(llm):
    """It computes nothing of the prefix again, and drafts as well as after a prompt of its own."""
    model, text = toy_model(llm), random_tokens(3, 70).tolist()
    passes, sampling = Passes(model), SamplingParams(max_tokens=20, ignore_eos=True)
    engine = make_engine(llm, model, proposer=llm.DraftModelProposer(passes, 3), enable_prefix_caching=True)
    for turn in range(3):  # each goes on from the answer to the one before
        del passes.rows[:]
        (done,) = engine.generate([Prompt(text, sampling)])
        text += [*done.token_ids, turn]
        assert turn == 0 or max(passes.rows) <= 16 + 2, "not the prefix"
    stats = engine.core.spec_stats
    assert stats.num_accepted_tokens == stats.num_draft_tokens > 40, "a model agrees with itself"


def test_a_chunk_and_its_reading_take_as_long_as_a_chunk_without_drafts(llm):
    """A token takes 2 s, and 1 s in the draft model, so a chunk has two thirds of the budget's tokens."""
    clock = FakeClock()
    whole, small = (
        Passes(toy_model(llm), clock, lambda num_rows, row_s=row_s: row_s * num_rows) for row_s in (2.0, 1.0)
    )
    options = {"proposer": llm.DraftModelProposer(small, 3), "draft_gate": AllDrafts(), "clock": clock}
    config = SchedulerConfig(max_num_batched_tokens=96, max_num_seqs=4)
    engine = make_engine(llm, whole, config, num_blocks=64, **options)
    engine.add("a", random_tokens(3, 400).tolist(), SamplingParams(max_tokens=1))
    while engine.has_requests:
        engine.step()
    assert whole.rows == [48, 64, 64, 64, 64, 64, 32], (
        "the first chunk as if reading took as long as the step"
    )
