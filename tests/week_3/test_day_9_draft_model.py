"""Day 3.9: a small model that speaks ahead, over the blocks of the model that verifies."""

import random
from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest
from tests.helpers.distributions import CUTS
from tests.helpers.drafting import Texts, expected_draft
from tests.helpers.fakes import FakeModel
from tests.helpers.passes import Passes
from tests.helpers.tolerance import F32, assert_close
from tests.helpers.toy import VOCAB, random_tokens, toy_model

from tiny_llm_lab.types import SamplingParams, UserError, Wanted

pytestmark = pytest.mark.task("3.9.3")


@pytest.fixture(scope="module")
def model(llm):
    return toy_model(llm)


def likeliest(llm, model, text, num_tokens):
    return expected_draft(model, text, num_tokens, llm.Drafter(llm.Sampler(SamplingParams())), VOCAB)


def prompt(seed, length):
    return random_tokens(seed, length).tolist()


@pytest.mark.parametrize("num_accepted", [0, 1, 2, 3])
def test_only_what_is_new_iscomputed(llm, model, num_accepted):
    passes = Passes(model)
    texts = Texts(llm, llm.DraftModelProposer(passes, 3), block_size=64)
    texts.start("a", text := prompt(2, 9), num_blocks=1)
    for _ in range(4):
        (draft,) = texts.draft("a")
        assert list(draft.token_ids) == likeliest(llm, model, text, 3)
        text = texts.verify("a", num_accepted, 33)
        del passes.rows[:]
    (draft,) = texts.draft("a")
    assert list(draft.token_ids) == likeliest(llm, model, text, 3)
    # The last draft token was never computed; when accepted it comes with the newest token.
    assert passes.rows == [2 if num_accepted == 3 else 1, 1, 1]


def test_requests_share_a_pass_for_each_position(llm, model):
    passes = Passes(model)
    texts = Texts(llm, llm.DraftModelProposer(passes, 4))
    for i, name in enumerate("abc"):
        texts.start(name, prompt(i, 13 + i))
    del passes.rows[:]
    for draft, i in zip(texts.draft(*"abc", num_tokens=4), range(3), strict=True):
        assert list(draft.token_ids) == likeliest(llm, model, prompt(i, 13 + i), 4)
    assert passes.rows == [3, 3, 3, 3]


@pytest.mark.parametrize("chunk", [1, 3, 5, 16])
@pytest.mark.parametrize("length", [2, 4, 5, 6, 17, 18])
def test_full_blocks_are_stored_when_the_model_has_computed_them(llm, model, length, chunk):
    """The prefix cache may show them to another request at once."""
    texts = Texts(llm, llm.DraftModelProposer(model, 3))
    texts.start("a", prompt(length, length), chunk=chunk)
    assert (length - 1) // 4 * 4 <= texts.num_read <= length - 1


@pytest.mark.parametrize("num_stored", [0, 2, 3])
def test_blocks_that_another_request_has_filled_are_not_computed_again(llm, model, num_stored):
    passes = Passes(model)
    texts = Texts(llm, llm.DraftModelProposer(passes, 3))
    common = prompt(5, 12)
    texts.start("first", [*common, 1, 2])
    shared = texts.sequences["first"].block_ids[:3]
    second = texts.llm.TokenSequence("second", [*common, 7, 8])
    second.block_ids = [*shared, *texts.free[:4]]
    second.num_computed_tokens = 12  # found in the prefix cache
    texts.sequences["second"] = second
    for block in shared[num_stored:]:
        texts.proposer.is_stored[block] = 0
    del passes.rows[:]
    texts.computed(second, 2, [9])
    (draft,) = texts.draft("second")
    assert list(draft.token_ids) == likeliest(llm, model, [*common, 7, 8, 9], 3)
    assert passes.rows == ([3, 1, 1] if num_stored == 3 else [14 - 4 * num_stored, 1, 1, 1])


@pytest.mark.parametrize(("length", "count"), [(8, 3), (9, 2), (10, 1), (11, 0), (40, 0)])
def test_a_draft_ends_where_the_draft_models_positions_end(llm, model, length, count):
    short = Passes(model)
    short.config = replace(model.config, max_position_embeddings=10)
    texts = Texts(llm, llm.DraftModelProposer(short, 3))
    texts.start("a", prompt(7, length), num_blocks=12)
    (draft,) = texts.draft("a")
    assert len(draft.token_ids) == count
    assert all(start + rows <= 10 for start, rows in zip(short.starts, short.rows, strict=True))


@pytest.mark.parametrize(("length", "count"), [(6, 3), (7, 2), (8, 1), (9, 0)])
def test_a_draft_ends_with_the_blocks_of_its_request(llm, model, length, count):
    texts = Texts(llm, llm.DraftModelProposer(model, 3))
    texts.start("a", prompt(7, length), num_blocks=3 if length == 9 else 2)
    texts.sequences["a"].block_ids = texts.sequences["a"].block_ids[:2]
    (draft,) = texts.draft("a")
    assert len(draft.token_ids) == count


@pytest.mark.parametrize("settings", CUTS)
def test_the_draft_model_tells_its_distribution(llm, model, settings):
    sampling = SamplingParams(seed=9, **settings)
    texts = Texts(llm, llm.DraftModelProposer(model, 3))
    texts.start("a", text := prompt(8, 6))
    (draft,) = texts.draft("a", sampler=llm.Drafter(sampler := llm.Sampler(sampling), coupled=False))
    assert draft.probs.shape == (3, VOCAB)
    for i, row in enumerate(draft.probs):
        logits = model(mx.array([[*text, *draft.token_ids[:i]]]), wanted=Wanted(last=1))[:, -1]
        assert_close(row, mx.softmax(sampler.scores(logits), axis=-1)[0], F32, legend="[V]")
        assert row[draft.token_ids[i]].item() > 0
    assert texts.draft("a", sampler=llm.Drafter(sampler))[0].probs is None


class Asked:
    """Draws what it is told, and remembers the positions that it is asked for."""

    shares_key = False

    def __init__(self, token_of):
        self.token_of, self.positions, self.shapes = token_of, [], set()

    def draft(self, logits, position):
        self.positions.append(position)
        self.shapes.add(logits.shape)
        return self.token_of(position), None


def test_a_draft_token_is_drawn_for_its_position(llm, model):
    texts = Texts(llm, llm.DraftModelProposer(model, 3))
    texts.start("a", prompt(9, 6))
    (draft,) = texts.draft("a", sampler=(asked := Asked(lambda position: 100 + position)))
    assert draft.token_ids == (106, 107, 108)
    assert (asked.positions, asked.shapes) == ([6, 7, 8], {(1, VOCAB)})


@pytest.mark.parametrize("temperature", [0.6, 1.0])
def test_drafts_share_the_random_numbers_of_their_positions(llm, model, temperature):
    """The draft model draws what the sampler would, so a model that thinks alike draws the same."""
    texts = Texts(llm, llm.DraftModelProposer(model, 6))
    for seed in range(5):
        drafter = llm.Drafter(llm.Sampler(SamplingParams(temperature=temperature, seed=seed)))
        texts.start(str(seed), text := prompt(seed, 8), num_blocks=4)
        (draft,) = texts.draft(str(seed), num_tokens=6, sampler=drafter)
        assert list(draft.token_ids) == expected_draft(model, text, 6, drafter, VOCAB)


@pytest.mark.parametrize("padding", [-100, -1, 0, 1, 30, 1023])
def test_vocabularies_may_differ_by_padding(llm, model, padding):
    texts = Texts(llm, llm.DraftModelProposer(model, 3, VOCAB + padding))
    texts.start("a", text := prompt(10, 6))
    drafter = llm.Drafter(llm.Sampler(SamplingParams(temperature=5.0, seed=2)))
    (draft,) = texts.draft("a", sampler=drafter)
    assert list(draft.token_ids) == expected_draft(model, text, 3, drafter, VOCAB + padding)
    (draft,) = texts.draft("a", sampler=llm.Drafter(drafter.sampler, coupled=False))
    rows = np.array(draft.probs)
    assert rows.shape == (3, VOCAB + padding) and rows.sum(axis=-1) == pytest.approx(1.0, abs=1e-5)
    assert not rows[:, VOCAB:].any(), "a token that the draft model does not have is never drawn"


def test_a_token_outside_its_vocabulary_does_not_reach_the_draft_model(llm, model):
    class Strict(Passes):
        def __call__(self, tokens, offset, cache, **rest):
            assert mx.all(tokens < VOCAB).item(), "such a token would read beyond the embedding"
            return super().__call__(tokens, offset, cache, **rest)

    texts = Texts(llm, llm.DraftModelProposer(Strict(model), 4, VOCAB + 30))
    texts.start("a", [3, VOCAB + 29, 4, 5, 6, VOCAB])
    sampler = Asked(lambda position: VOCAB + 3 if position == 7 else 100)
    (draft,) = texts.draft("a", num_tokens=4, sampler=sampler)
    assert draft.token_ids == (100, VOCAB + 3, 100, 100)


def test_what_cannot_work_is_refused(llm):
    vocab = FakeModel().config.vocab_size
    assert llm.DraftModelProposer(FakeModel(), vocab_size=vocab).num_tokens == 4
    assert llm.DraftModelProposer(FakeModel(), vocab_size=vocab + 128).num_tokens == 4, "padding"
    for size in (vocab + 1024, vocab + 5000):
        with pytest.raises(UserError):
            llm.DraftModelProposer(FakeModel(), vocab_size=size)
    big = FakeModel()
    big.config = replace(big.config, vocab_size=3000)
    with pytest.raises(UserError):
        llm.DraftModelProposer(big, vocab_size=3000 - 1024)
    with pytest.raises(UserError):
        llm.DraftModelProposer(FakeModel(), 0)


@pytest.mark.parametrize("seed", range(8))
def test_whatever_happens_a_draft_is_that_of_the_whole_text(llm, model, seed):
    """Chunks, drafts of any length, steps without one, rejected tokens, preemptions, requests that end."""
    rng = random.Random(seed)
    texts = Texts(llm, llm.DraftModelProposer(model, 5), num_blocks=96, block_size=rng.choice((1, 4, 16)))
    size = 32 // texts.block_size if texts.block_size < 16 else 4
    for turn in range(60):
        if len(texts.sequences) < 2 or (rng.random() < 0.1 and len(texts.free) > size):
            texts.start(f"r{turn}", prompt(turn, rng.randint(2, 20)), size, rng.choice((1, 3, 8)))
        name = rng.choice(list(texts.sequences))
        sequence, event = texts.sequences[name], rng.random()
        if sequence.num_tokens > 26 or event < 0.05:
            texts.proposer.forget(name)
            texts.free += texts.sequences.pop(name).block_ids
        elif event < 0.15 and len(texts.free) >= size:
            texts.free += sequence.block_ids
            rng.shuffle(texts.free)
            sequence.block_ids, texts.free = texts.free[:size], texts.free[size:]
            sequence.num_computed_tokens = sequence.num_read_tokens = 0
            texts.computed(sequence, sequence.num_tokens, [rng.randrange(VOCAB)])
        else:
            names = list(texts.sequences) if event < 0.5 else [name] if event < 0.8 else []
            names = [each for each in names if texts.sequences[each].num_tokens <= 26]
            for each, draft in zip(names, texts.draft(*names, num_tokens=rng.randint(1, 5)), strict=True):
                text = texts.sequences[each].token_ids
                assert list(draft.token_ids) == likeliest(llm, model, text, len(draft.token_ids)), each
            for each in names or [name]:
                count = rng.randint(0, len(texts.sequences[each].spec_token_ids))
                texts.verify(each, count, rng.randrange(VOCAB))
