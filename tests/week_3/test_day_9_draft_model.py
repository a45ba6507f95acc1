"""Day 3.9: a small model that speaks ahead."""

import mlx.core as mx
import pytest
from tests.helpers.distributions import CUTS
from tests.helpers.fakes import FakeModel, live_requests
from tests.helpers.tolerance import F32, assert_close

from tiny_llm_lab.types import SamplingParams, UserError, Wanted

pytestmark = pytest.mark.task("3.9.3")


def test_the_draft_model_says_what_it_would_say(llm):
    model, prompt = FakeModel(), list(b"once upon a time")
    draft = llm.DraftModelProposer(model, 5).propose(prompt)
    assert list(draft.token_ids) == model.answer_to(prompt, 5)
    assert draft.probs is None


@pytest.mark.parametrize("num_accepted", [0, 1, 2, 3])
def test_the_draft_model_computes_only_what_is_new(llm, num_accepted):
    model, tokens = FakeModel(), list(b"the beginning")
    proposer = llm.DraftModelProposer(model, 3)
    for _ in range(4):
        draft = list(proposer.propose(tokens, "a").token_ids)
        assert draft == model.answer_to(tokens, 3)
        tokens += [*draft[:num_accepted], ord("!")]
        del model.calls[:]
    draft = list(proposer.propose(tokens, "a").token_ids)
    assert draft == model.answer_to(tokens, 3)
    # The third draft token was never computed; when accepted it comes with the newest token.
    assert [call.length for call in model.calls] == [2 if num_accepted == 3 else 1, 1, 1]


def test_the_draft_model_may_be_asked_twice(llm):
    model, tokens = FakeModel(), list(b"the same")
    proposer = llm.DraftModelProposer(model, 4)
    first = proposer.propose(tokens, "a").token_ids
    assert proposer.propose(tokens, "a").token_ids == first
    assert list(proposer.propose(tokens[:5], "a").token_ids) == model.answer_to(tokens[:5], 4)


def test_requests_have_draft_caches_of_their_own(llm):
    model = FakeModel()
    proposer = llm.DraftModelProposer(model, 2)
    texts = {"a": list(b"first text"), "b": list(b"second")}
    for _ in range(3):
        for name, tokens in texts.items():
            draft = list(proposer.propose(tokens, name).token_ids)
            assert draft == model.answer_to(tokens, 2), name
            tokens += draft
    assert live_requests(model) == 2
    proposer.forget("a")
    proposer.forget("a")
    assert live_requests(model) == 1
    assert list(proposer.propose(texts["a"], "a").token_ids) == model.answer_to(texts["a"], 2)
    assert list(proposer.propose(texts["b"], "b").token_ids) == model.answer_to(texts["b"], 2)


@pytest.mark.parametrize(("length", "want"), [(8, 3), (9, 2), (10, 1), (11, 0), (40, 0), (0, 0)])
def test_the_draft_model_stops_where_its_positions_end(llm, length, want):
    model = FakeModel(max_position_embeddings=10)
    draft = llm.DraftModelProposer(model, 3).propose([97] * length)
    assert len(draft.token_ids) == want
    assert all(call.offset + call.length <= 10 for call in model.calls)


@pytest.mark.parametrize("settings", CUTS)
def test_the_draft_model_tells_its_distribution(llm, settings):
    model, tokens = FakeModel(), list(b"chance")
    sampling = SamplingParams(seed=9, **settings)
    draft = llm.DraftModelProposer(model, 3).propose(
        tokens, "a", llm.Drafter(llm.Sampler(sampling), coupled=False)
    )
    assert draft.probs.shape == (3, model.config.vocab_size)
    sampler = llm.Sampler(sampling)
    for i, row in enumerate(draft.probs):
        logits = model(mx.array([[*tokens, *draft.token_ids[:i]]]), wanted=Wanted(last=1))[:, -1]
        assert_close(row, mx.softmax(sampler.scores(logits), axis=-1)[0], F32, legend="[V]")
        assert row[draft.token_ids[i]].item() > 0
    coupled = llm.DraftModelProposer(model, 3).propose(tokens, "a", llm.Drafter(sampler))
    assert coupled.probs is None


def test_the_draft_model_asks_for_the_position_of_each_draft_token(llm):
    class Asked:
        def __init__(self):
            self.positions = []

        def draft(self, logits, position):
            self.positions.append(position)
            assert logits.shape == (1, 258)
            return 100 + position, None

    model, sampler = FakeModel(), Asked()
    draft = llm.DraftModelProposer(model, 3).propose([97] * 6, "a", sampler)
    assert draft.token_ids == (106, 107, 108)
    assert sampler.positions == [6, 7, 8]
    assert [call.tokens[0] for call in model.calls] == [[97] * 6, [106], [107]]


def test_the_draft_model_rejects_what_cannot_work(llm):
    vocab = FakeModel().config.vocab_size
    assert llm.DraftModelProposer(FakeModel(), vocab_size=vocab).num_tokens == 4
    assert llm.DraftModelProposer(FakeModel(), vocab_size=vocab + 128).num_tokens == 4, "padding"
    for size in (vocab + 1024, vocab + 5000):
        with pytest.raises(UserError):
            llm.DraftModelProposer(FakeModel(), vocab_size=size)
    with pytest.raises(UserError):
        llm.DraftModelProposer(FakeModel(), 0)
