"""Day 3.9: drafts in the engine: who gets one, what is counted, and draft tokens that must not count."""

from dataclasses import replace

import pytest
from tests.helpers.drafting import Scripted, counters
from tests.helpers.serving import make_engine, serve
from tests.helpers.toy import VOCAB, ByteTokenizer, random_tokens

from tiny_llm_lab.types import Prompt, SamplingParams, SchedulerConfig

pytestmark = pytest.mark.task("3.9.6")

LONG = SamplingParams(max_tokens=12, ignore_eos=True)


def plain(llm, model, prompt):
    return list(llm.batch_generate(model, ByteTokenizer(), [prompt])[0].token_ids)


def test_an_engine_without_a_proposer_counts_nothing(llm, model):
    assert make_engine(llm, model).core.spec_stats is None


def test_the_engine_counts_drafts_and_accepted_tokens(llm, model):
    prompt = Prompt(random_tokens(1, 20).tolist(), LONG)
    answer = plain(llm, model, prompt)

    def draft(done):
        # Right at 1; wrong from its second token at 4; empty at 5; wrong at 6; right up to the end.
        wrong = {4: 1, 6: 0}
        if done == 5:
            return ()
        tokens = answer[done : done + (2 if done == 1 else 3)]
        if done in wrong:
            tokens[wrong[done]] = (tokens[wrong[done]] + 1) % VOCAB
        return tokens

    proposer = Scripted(20, draft)
    engine = make_engine(llm, model, proposer=proposer)
    assert list(serve(engine, [prompt])[0].token_ids) == answer
    # 1 -> 2 accepted, the bonus is token 4; 4 -> 1 and a replacement: 6; 6 -> replaced: 7; 7 -> 3 and 11.
    assert [len(each) for each in proposer.drafts] == [2, 3, 3, 3]
    assert counters(engine.core.spec_stats) == (4, 11, 6, [3, 2, 1])


def test_a_draft_that_waits_for_its_step_is_not_made_again(llm, model):
    config = SchedulerConfig(max_num_batched_tokens=16, max_num_seqs=4, step_mode="alternate")
    prompts = [Prompt(random_tokens(length, length).tolist(), LONG) for length in (20, 90)]
    proposer, asked = Scripted(20, lambda done: asked.append(done) or [7]), []
    engine = make_engine(llm, model, config, proposer=proposer)
    engine.add("decodes", prompts[0].content, prompts[0].sampling)
    while not asked:
        engine.step()
    engine.add("long", prompts[1].content, replace(LONG, max_tokens=1))
    while engine.has_requests:
        engine.step()
    assert asked == sorted(set(asked)), "one draft for each length of the text, whatever steps lie between"


def test_tokens_that_max_tokens_cuts_off_are_not_drafted(llm, model):
    prompt = Prompt(random_tokens(3, 20).tolist(), LONG)
    answer = plain(llm, model, prompt)
    engine = make_engine(llm, model, proposer=Scripted(20, lambda done: [*answer[done:], *[0] * 9][:9]))
    assert list(serve(engine, [prompt])[0].token_ids) == answer
    # One token from the prompt, nine and a bonus from the first draft, and the last one needs no draft.
    assert counters(engine.core.spec_stats) == (1, 9, 9, [1] * 9)


@pytest.mark.parametrize("outside", [VOCAB, VOCAB + 100, 2**31, -1])
def test_a_draft_ends_before_a_token_outside_the_vocabulary(llm, model, outside):
    # Such a token would index the embedding where there is nothing.
    prompt = Prompt(random_tokens(4, 20).tolist(), LONG)
    answer = plain(llm, model, prompt)
    engine = make_engine(
        llm, model, proposer=Scripted(20, lambda done: [*answer[done : done + 1], outside, 5])
    )
    widest = []
    launch = engine.core.scheduler.schedule

    def look(*args):
        widest.extend(token for each in engine.core.scheduler.running for token in each.spec_token_ids)
        return launch(*args)

    engine.core.scheduler.schedule = look
    assert list(serve(engine, [prompt])[0].token_ids) == answer
    assert set(widest) <= set(answer)
    assert engine.core.spec_stats.num_draft_tokens == engine.core.spec_stats.num_accepted_tokens > 0


# One draw per position, with a draft or without
