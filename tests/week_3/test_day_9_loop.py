"""Day 3.9: the speculative loop. Drafts may change how many tokens a step brings, never which."""

import random

import pytest
from tests.helpers.fakes import FakeModel, live_requests
from tests.helpers.toy import ByteTokenizer, toy_model

from tiny_llm_lab.types import DoneEvent, Draft, Proposer, SamplingParams, TokenEvent

pytestmark = pytest.mark.task("3.9.4")

TOKENIZER = ByteTokenizer()


@pytest.fixture(scope="module")
def model(llm):
    return toy_model(llm)


class Whisperer(Proposer):
    """Knows the answer and says some of it wrong."""

    def __init__(self, answer, num_prompt_tokens, num_tokens=4, right=0.7, seed=0):
        self.answer, self.start, self.num_tokens = answer, num_prompt_tokens, num_tokens
        self.right, self.rng = right, random.Random(seed)
        self.asked, self.forgotten = set(), []

    def look_up(self, token_ids, request_id=None):
        self.asked.add(request_id)
        done = len(token_ids) - self.start
        true = self.answer[done : done + self.num_tokens]
        return Draft(
            tuple(t if self.rng.random() < self.right else self.rng.randrange(97, 123) for t in true)
        )

    def forget(self, request_id):
        self.forgotten.append(request_id)


def outcome(events):
    """All that a user sees of an answer besides times."""
    done = events[-1]
    assert isinstance(done, DoneEvent)
    tokens = [event.token_id for event in events if isinstance(event, TokenEvent)]
    texts = "".join(event.text for event in events if isinstance(event, TokenEvent))
    return tokens, texts, done.completion.token_ids, done.completion.text, done.completion.finish_reason


SETTINGS = [
    {"max_tokens": 20},
    {"max_tokens": 1},
    {"max_tokens": 2},
    {"temperature": 1.0, "seed": 5, "max_tokens": 20},
    {"temperature": 0.8, "top_k": 5, "top_p": 0.9, "min_p": 0.05, "seed": 6, "max_tokens": 20},
    {"max_tokens": 20, "stop": ("a", "e", "i")},
]


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("right", [0.0, 0.7, 1.0])
def test_speculation_changes_nothing_that_is_said(llm, settings, right):
    sampling = SamplingParams(**settings)
    for seed, prompt in enumerate(["tell me", "a", "the same again, and the same again"]):
        model = FakeModel()
        want = outcome(list(llm.stream_generate(model, TOKENIZER, prompt, sampling, prefill_step=8)))
        answer = [*want[2], *model.answer_to([*prompt.encode(), *want[2]], 6)]  # goes on after the end
        whisperer = Whisperer(answer, len(prompt), right=right, seed=seed)
        stats = llm.SpecDecodeStats()
        events = llm.speculative_generate(
            model, TOKENIZER, prompt, whisperer, sampling, prefill_step=8, stats=stats
        )
        assert outcome(list(events)) == want
        assert live_requests(model) == 0
        assert stats.num_accepted_tokens <= stats.num_draft_tokens
        assert sorted(whisperer.asked) == sorted(set(whisperer.forgotten) & whisperer.asked)


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("name", ["ngram", "draft model", "other draft model"])
def test_every_proposer_changes_nothing(llm, model, settings, name):
    sampling = SamplingParams(**settings)
    proposer = {
        "ngram": llm.NgramProposer(),
        "draft model": llm.DraftModelProposer(model),
        "other draft model": llm.DraftModelProposer(toy_model(llm, seed=1)),
    }[name]
    for prompt in ("abcabcabc", "speak", "x"):
        want = outcome(list(llm.stream_generate(model, TOKENIZER, prompt, sampling)))
        events = llm.speculative_generate(model, TOKENIZER, prompt, proposer, sampling, prefill_step=4)
        assert outcome(list(events)) == want
        assert not any(cache.pools for cache in proposer.caches), "its memory is freed"


def test_right_drafts_save_passes(llm):
    sampling, stats = SamplingParams(max_tokens=21), llm.SpecDecodeStats()
    model = FakeModel()
    answer = model.answer_to(b"prompt", 21)
    whisperer = Whisperer(answer, 6, right=1.0)
    events = llm.speculative_generate(model, TOKENIZER, "prompt", whisperer, sampling, stats=stats)
    assert len([event for event in events if isinstance(event, TokenEvent)]) == 21
    # The prompt's pass brings one token; four more passes of 1 + 4 tokens bring five each.
    assert [call.length for call in model.calls] == [6, 5, 5, 5, 5]
    assert [call.offset for call in model.calls] == [0, 6, 11, 16, 21]
    assert (stats.num_drafts, stats.num_draft_tokens, stats.num_accepted_tokens) == (4, 16, 16)
    assert stats.num_accepted_tokens_per_pos == [4, 4, 4, 4]


@pytest.mark.parametrize("most", [6, 7, 8, 9, 10, 14])
def test_drafts_stay_within_max_seq_len(llm, most):
    model = FakeModel()
    want = outcome(list(llm.stream_generate(model, TOKENIZER, "prompt", max_seq_len=most)))
    del model.calls[:]
    whisperer = Whisperer(list(want[2]) + [97] * 9, 6, right=1.0)
    events = list(llm.speculative_generate(model, TOKENIZER, "prompt", whisperer, max_seq_len=most))
    assert outcome(events) == want
    assert max(call.offset + call.length for call in model.calls) <= most


def test_a_closed_answer_gives_everything_back(llm, model):
    answering, proposer = FakeModel(), llm.DraftModelProposer(model)
    events = llm.speculative_generate(answering, TOKENIZER, "prompt", proposer)
    for _ in range(4):
        next(events)
    [cache] = proposer.caches
    assert live_requests(answering) == 1 and cache.pools
    events.close()
    assert live_requests(answering) == 0 and not cache.pools


@pytest.mark.parametrize("settings", [{}, {"temperature": 1.0, "top_p": 0.8, "seed": 7}])
@pytest.mark.parametrize("coupled", [False, True])
def test_a_draft_model_that_thinks_alike_is_always_right(llm, model, settings, coupled):
    # With p = q every draft token is accepted, whatever was drawn.
    stats, proposer = llm.SpecDecodeStats(), llm.DraftModelProposer(model, 3)
    sampling = SamplingParams(max_tokens=13, ignore_eos=True, **settings)
    events = llm.speculative_generate(
        model, TOKENIZER, "prompt", proposer, sampling, coupled=coupled, stats=stats
    )
    assert len(outcome(list(events))[0]) == 13
    assert stats.acceptance_rate == 1
    assert (stats.num_drafts, stats.num_draft_tokens) == (3, 9), "three drafts of three bring twelve"


def test_uncoupled_drafts_are_drawn_by_themselves(llm, model):
    """An unlike draft model: its tokens bring others than the model draws alone, coupled ones don't."""
    proposer = llm.DraftModelProposer(toy_model(llm, seed=1), 3)
    sampling = SamplingParams(temperature=1.0, max_tokens=40, ignore_eos=True, seed=7)
    alone = outcome(list(llm.stream_generate(model, TOKENIZER, "prompt", sampling)))
    coupled, uncoupled = (
        outcome(list(llm.speculative_generate(model, TOKENIZER, "prompt", proposer, sampling, coupled=each)))
        for each in (True, False)
    )
    assert coupled == alone and len(uncoupled[0]) == 40 and uncoupled[0] != alone[0]
