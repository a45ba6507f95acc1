"""Day 3.9: drafts at the borders: whole chunks, padded vocabularies, unknown tokens, an empty residual."""

from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest
from tests.helpers.fakes import FakeModel
from tests.helpers.toy import ByteTokenizer

from tiny_llm_lab.types import DoneEvent, Draft, SamplingParams, UserError

# The task of each test that names no other.
pytestmark = pytest.mark.task("3.9.3")

VOCAB = FakeModel().config.vocab_size


def digits(length):
    return list((b"0123456789" * (length // 10 + 1))[:length])


# Acceptance


@pytest.mark.task("3.9.2")
def test_a_residual_of_nothing_is_not_drawn_from(llm):
    # When q is p up to rounding, a draft token can be rejected although max(p - q, 0) is 0 everywhere.
    sampler = llm.Sampler(SamplingParams(temperature=1.0, top_k=2, seed=1))
    logits = mx.array([[0.0, 0.0, 0.0, 5.0, 4.0, 0.0]] * 2)
    p = mx.softmax(sampler.scores(logits[0]), axis=-1)
    steps = [llm.accept_with_draft_probs(logits, [3], 1.5 * p[None], sampler, 2 * i) for i in range(200)]
    replaced = [step for step in steps if len(step) == 1]
    assert len(replaced) > 20, "or nothing is rejected"
    assert {step[0] for step in replaced} == {3, 4}, "drawn from p, which has no other token"


# A draft model


@pytest.mark.parametrize("length", [511, 512, 513, 1024])
def test_a_text_of_whole_chunks_is_drafted_for(llm, length):
    model = FakeModel()
    draft = llm.DraftModelProposer(model, 2).propose(digits(length))
    assert list(draft.token_ids) == model.answer_to(digits(length), 2)
    sizes = [call.length for call in model.calls]
    assert max(sizes) <= 512
    assert sum(sizes) == length + 1, "every token of the text once, and the first of the draft"


@pytest.mark.parametrize("padding", [-100, -1, 0, 1, 30, 1023])
def test_vocabularies_may_differ_by_padding(llm, padding):
    model, text = FakeModel(), list(b"chance")
    proposer = llm.DraftModelProposer(model, 3, VOCAB + padding)
    assert list(proposer.propose(text).token_ids) == model.answer_to(text, 3)
    drafter = llm.Drafter(llm.Sampler(SamplingParams(temperature=5.0, seed=2)), coupled=False)
    draft = proposer.propose(text, "a", drafter)
    assert draft.probs.shape == (len(draft.token_ids), VOCAB + padding)
    rows = np.array(draft.probs)
    assert rows.sum(axis=-1) == pytest.approx(1.0, abs=1e-5)
    assert not rows[:, VOCAB:].any(), "a token that the draft model does not have is never drawn"


@pytest.mark.parametrize("difference", [-1024, 1024, 5000])
def test_vocabularies_of_different_tokenizers_are_refused(llm, difference):
    model = FakeModel()
    model.config = replace(model.config, vocab_size=3000)
    with pytest.raises(UserError):
        llm.DraftModelProposer(model, vocab_size=3000 + difference)


def test_a_text_that_the_draft_model_does_not_know_has_no_draft(llm):
    model = FakeModel()
    proposer = llm.DraftModelProposer(model, 3, VOCAB + 30)
    for text in ([97, VOCAB, 98], [VOCAB + 29]):
        assert proposer.propose(text, "a").token_ids == ()
    assert model.calls == []


def test_a_draft_ends_with_a_token_that_the_draft_model_does_not_know(llm):
    class Outside:
        def draft(self, logits, position):
            return VOCAB if position == 7 else 100, None

    model = FakeModel()
    draft = llm.DraftModelProposer(model, 4, VOCAB + 30).propose([97] * 6, "a", Outside())
    assert draft.token_ids == (100, VOCAB)
    assert all(token < VOCAB for call in model.calls for row in call.tokens for token in row)


# The loop


class Scripted:
    """Drafts `draft(number of tokens of the answer)`."""

    def __init__(self, num_prompt_tokens, draft):
        self.num_prompt_tokens, self.draft = num_prompt_tokens, draft

    def propose(self, token_ids, request_id=None, sampler=None):
        return Draft(tuple(self.draft(len(token_ids) - self.num_prompt_tokens)))

    def forget(self, request_id):
        pass


def tokens_of(events):
    (done,) = [event for event in events if isinstance(event, DoneEvent)]
    return list(done.completion.token_ids)


@pytest.mark.task("3.9.4")
@pytest.mark.parametrize("outside", [VOCAB, VOCAB + 100, 2**31, -1])
def test_a_draft_ends_before_a_token_outside_the_vocabulary(llm, outside):
    model, sampling = FakeModel(), SamplingParams(max_tokens=12)
    answer = model.answer_to(b"prompt", 12)
    proposer = Scripted(6, lambda done: [answer[done], outside, 97])
    got = llm.speculative_generate(model, ByteTokenizer(), "prompt", proposer, sampling)
    assert tokens_of(got) == answer
    assert all(0 <= token < VOCAB for call in model.calls for row in call.tokens for token in row)
    assert max(call.length for call in model.calls[1:]) == 2, "what stands before it is verified"
