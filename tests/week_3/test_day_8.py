"""Day 3.8: speculative decoding. Guesses may change how many tokens a step brings, never which."""

import random
from itertools import pairwise

import mlx.core as mx
import numpy as np
import pytest
from tests.helpers import oracle
from tests.helpers.fakes import FakeModel, live_requests
from tests.helpers.tolerance import F32, assert_close
from tests.helpers.toy import EOS, QWEN2, QWEN3, ByteTokenizer, random_array, toy_model

from tiny_llm_lab.types import DoneEvent, Draft, SamplingParams, TokenEvent, UserError

TOKENIZER = ByteTokenizer()


# Guesses that are looked up


@pytest.mark.task("3.8.1")
@pytest.mark.parametrize(
    ("text", "settings", "want"),
    [
        ("the cat sat. the c", {}, "at s"),
        ("the cat sat. the c", {"num_tokens": 9}, "at sat. t"),
        ("abcd xbcd yd", {"max_ngram": 3}, " yd"),  # only "d" is known; its last place has 3 tokens behind it
        ("abcX bcY c.. abc", {}, "X bc"),  # the longest n-gram counts, not the most recent shorter one
        ("abcX abcY abcZ abc", {}, "Z ab"),  # of equally long ones the most recent
        ("abcX bcY c.. abc", {"max_ngram": 1}, ".. a"),
        ("abcX bcY c.. abc", {"max_ngram": 2}, "Y c."),
        ("xxabc yyabc", {"max_ngram": 5, "min_ngram": 3}, " yya"),
        ("xbc yabc", {"min_ngram": 3}, ""),  # two tokens agree, and three are asked for
        ("aaaaa", {}, "a"),  # the earlier occurrence overlaps with the end
        ("abababab", {}, "ab"),
        ("abc", {}, ""),
        ("a", {}, ""),
        ("", {}, ""),
        ("aa", {}, "a"),
    ],
)
def test_ngram_drafts(llm, text, settings, want):
    draft = llm.NgramProposer(**settings).propose(list(text.encode()))
    assert bytes(draft.token_ids).decode() == want
    assert draft.probs is None


def looked_up(tokens, max_ngram, min_ngram, num_tokens):
    """What the docstring says, word by word."""
    for n in range(max_ngram, min_ngram - 1, -1):
        places = [i for i in range(len(tokens) - n) if tokens[i : i + n] == tokens[len(tokens) - n :]]
        if places:
            return tuple(tokens[places[-1] + n :][:num_tokens])
    return ()


@pytest.mark.task("3.8.1")
@pytest.mark.parametrize("letters", [1, 2, 3, 8, 200])
@pytest.mark.parametrize(("longest", "shortest"), [(1, 1), (3, 1), (4, 2), (6, 6)])
def test_ngram_drafts_while_texts_grow(llm, letters, longest, shortest):
    rng = random.Random(letters)
    proposer = llm.NgramProposer(longest, shortest, 3)
    texts = {"one": [], "two": []}
    for _ in range(60):
        for name, tokens in texts.items():
            tokens += rng.choices(range(letters), k=rng.randint(1, 3))
            want = looked_up(tokens, longest, shortest, 3)
            assert tuple(proposer.propose(tokens).token_ids) == want, tokens
            assert tuple(proposer.propose(tokens, name).token_ids) == want, (name, tokens)


@pytest.mark.task("3.8.1")
def test_ngram_forgets_a_request(llm):
    proposer = llm.NgramProposer()
    assert proposer.propose([1, 2, 3, 1], "a").token_ids == (2, 3, 1)
    proposer.forget("a")
    proposer.forget("never seen")
    assert proposer.propose([7, 8, 7], "a").token_ids == (8, 7)


@pytest.mark.task("3.8.1")
@pytest.mark.parametrize(
    "settings", [{"min_ngram": 0}, {"max_ngram": 2, "min_ngram": 3}, {"num_tokens": 0}, {"max_ngram": 0}]
)
def test_ngram_rejects_bad_settings(llm, settings):
    with pytest.raises(UserError):
        llm.NgramProposer(**settings)


# Which guesses stand

START = 7  # tokens of the prompt
# Rows of one step: what comes first, and what follows when the first guesses stood: [K + 1, V], and
# what the guesses are drawn from: [K, V].
P = np.array(
    [
        [0.40, 0.30, 0.15, 0.10, 0.05],
        [0.05, 0.10, 0.20, 0.25, 0.40],
        [0.50, 0.05, 0.15, 0.15, 0.15],
    ]
)
Q = np.array(
    [
        [0.10, 0.50, 0.10, 0.20, 0.10],
        [0.20, 0.00, 0.20, 0.30, 0.30],
    ]
)
CUTS = [
    {"temperature": 1.0},
    {"temperature": 0.6, "top_k": 3},
    {"temperature": 1.3, "top_k": 4, "top_p": 0.9, "min_p": 0.3},
]
ROUNDS = 1000


def logits_of(probs):
    return mx.array(np.log(np.maximum(probs, 1e-30)).astype(np.float32))


def cut_probs(llm, probs, sampling):
    """The distribution that a sampler of week 1 draws from, [..., V] float64."""
    s = sampling
    return oracle.softmax(llm.truncated_logits(logits_of(probs), s.temperature, s.top_p, s.top_k, s.min_p))


def assert_follows(tokens, probs, what):
    """Pearson's chi-square test of `tokens` against `probs` at one in a million.

    The quantile is Wilson and Hilferty's (z = 4.75). A correct sampler with other seeds would fail once in
    a million runs; the wrong distributions of these tests exceed the bound by far.
    """
    tokens, possible = np.array(tokens), np.flatnonzero(probs > 0)
    assert set(tokens.tolist()) <= set(possible.tolist()), f"{what}: a token without probability was drawn"
    counts = np.bincount(tokens, minlength=len(probs))[possible]
    want = probs[possible] / probs[possible].sum() * len(tokens)
    assert len(tokens) > 0 and want.min() >= 5, f"{what}: {len(tokens)} tokens are too few for the test"
    chi2, df = float(((counts - want) ** 2 / want).sum()), max(1, len(possible) - 1)
    bound = df * (1 - 2 / (9 * df) + 4.75 * (2 / (9 * df)) ** 0.5) ** 3
    assert chi2 < bound, f"{what}: drawn {counts.tolist()}, expected about {want.round().tolist()}"


@pytest.mark.task("3.8.2")
@pytest.mark.parametrize("settings", CUTS)
def test_scores_are_those_that_week_1_draws_from(llm, settings):
    sampling = SamplingParams(**settings)
    got = mx.softmax(llm.Sampler(sampling).scores(logits_of(P)), axis=-1)
    assert_close(got, cut_probs(llm, P, sampling), F32, legend="[K + 1, V]")


@pytest.mark.task("3.8.2")
@pytest.mark.parametrize(
    ("draft", "want"),
    [
        ([], [0]),
        ([0], [0, 4]),
        ([1], [0]),
        ([0, 4], [0, 4, 2]),
        ([0, 3], [0, 4]),
        ([3, 4], [0]),
        ([0, 4, 2], [0, 4, 2, 1]),
        ([0, 4, 0], [0, 4, 2]),
        ([0, 0, 2], [0, 4]),
    ],
)
def test_greedy_acceptance(llm, draft, want):
    # The likeliest tokens of the four rows are 0, 4, 2 and 1.
    logits = mx.array(np.eye(5, dtype=np.float32)[[0, 4, 2, 1]])[: len(draft) + 1]
    sampler = llm.Sampler(SamplingParams())
    assert llm.accept(logits, draft, sampler, START) == want
    q = mx.full((len(draft), 5), 0.2)
    assert llm.accept_with_draft_probs(logits, draft, q, sampler, START) == want


@pytest.mark.task("3.8.2")
@pytest.mark.parametrize("settings", [{}, *CUTS])
def test_accepted_tokens_do_not_depend_on_the_guesses(llm, settings):
    sampling, rng = SamplingParams(seed=3, **settings), random.Random(4)
    for position in range(START, START + 12):
        rows = random_array(position, 5, 6) * 2
        drawn = llm.Sampler(sampling)(rows, position).tolist()
        guesses = [token if rng.random() < 0.7 else rng.randrange(6) for token in drawn[:4]]
        right = next((i for i in range(4) if guesses[i] != drawn[i]), 4)
        sampler = llm.Sampler(sampling)
        assert llm.accept(rows, guesses, sampler, position) == drawn[: right + 1], (guesses, drawn)


@pytest.mark.task("3.8.2")
@pytest.mark.parametrize("settings", CUTS)
@pytest.mark.parametrize("draft", [(0, 4), (1, 2)])
def test_looked_up_guesses_keep_the_distribution(llm, settings, draft):
    sampling = SamplingParams(seed=1, **settings)
    sampler, probs, logits = llm.Sampler(sampling), cut_probs(llm, P, sampling), logits_of(P)
    steps = [llm.accept(logits, draft, sampler, START + 3 * i) for i in range(ROUNDS)]
    assert_rows_follow(steps, probs)
    stood = sum(step[:1] == [draft[0]] for step in steps) / ROUNDS
    assert abs(stood - probs[0, draft[0]]) < deviations(probs[0, draft[0]])


def assert_rows_follow(steps, probs):
    """Token i of those steps that brought one must have the distribution of row i."""
    for i, row in enumerate(probs):
        tokens = [step[i] for step in steps if len(step) > i]
        if len(tokens) * row[row > 0].min() >= 5:
            assert_follows(tokens, row, f"token {i} of a step")


def deviations(share):
    """Five standard deviations of a frequency over ROUNDS draws: 1 in 2 million is further away."""
    return 5 * (max(share * (1 - share), 1e-4) / ROUNDS) ** 0.5


@pytest.mark.task("3.8.2")
@pytest.mark.parametrize("probabilistic", [False, True])
def test_tokens_of_one_step_are_independent(llm, probabilistic):
    flat = np.full((2, 3), 1 / 3)
    logits, guess = logits_of(flat), [1]
    sampler = llm.Sampler(SamplingParams(temperature=1.0, seed=5))
    pairs = []
    for i in range(ROUNDS):
        if probabilistic:
            q = mx.array(flat[:1].astype(np.float32))
            step = llm.accept_with_draft_probs(logits, guess, q, sampler, START + 2 * i)
            assert len(step) == 2, "p = q: every guess stands"
        else:
            step = sampler(logits, START + 2 * i).tolist()
        pairs.append(step)
    if probabilistic:
        assert_follows([second for _, second in pairs], flat[1], "the bonus token")
    else:
        assert_follows([3 * one + two for one, two in pairs], np.full(9, 1 / 9), "pairs in one step")
        between = [3 * one[1] + two[0] for one, two in pairwise(pairs)]
        assert_follows(between, np.full(9, 1 / 9), "pairs across steps")


def drafted_steps(llm, sampling, p=P, q=Q, rounds=ROUNDS):
    """Steps whose tokens were drafted from q, uncoupled."""
    drafter = llm.Drafter(llm.Sampler(sampling), coupled=False)
    p_logits, q_logits = logits_of(p), logits_of(q)
    steps = []
    for i in range(rounds):
        position = START + 3 * i
        drawn = [drafter.draft(q_logits[k : k + 1], position + k) for k in range(len(q))]
        guesses, probs = [token for token, _ in drawn], mx.stack([row for _, row in drawn])
        steps.append(
            (guesses, llm.accept_with_draft_probs(p_logits, guesses, probs, drafter.sampler, position), probs)
        )
    return steps


@pytest.mark.task("3.8.2")
@pytest.mark.parametrize("settings", CUTS)
def test_drawn_guesses_keep_the_distribution(llm, settings):
    sampling = SamplingParams(seed=2, **settings)
    steps = drafted_steps(llm, sampling)
    p, q = cut_probs(llm, P, sampling), cut_probs(llm, Q, sampling)
    assert_close(steps[0][2], q, F32, legend="[K, V]", what="what the guesses were drawn from")
    assert_rows_follow([step for _, step, _ in steps], p)
    assert_rows_follow([guesses for guesses, _, _ in steps], q)
    stood = sum(len(step) > 1 for _, step, _ in steps) / ROUNDS
    want = np.minimum(p[0], q[0]).sum()
    assert abs(stood - want) < deviations(want), f"{stood} of the first guesses stood, expected {want}"


@pytest.mark.task("3.8.2")
@pytest.mark.parametrize("guess", range(5))
def test_each_guess_stands_with_its_own_chance(llm, guess):
    sampler = llm.Sampler(SamplingParams(temperature=1.0, seed=6))
    q, logits = mx.array(Q[:1].astype(np.float32)), logits_of(P[:2])
    steps = [llm.accept_with_draft_probs(logits, [guess], q, sampler, START + 2 * i) for i in range(ROUNDS)]
    stood = [step for step in steps if len(step) == 2]
    want = min(1.0, P[0, guess] / Q[0, guess])
    assert {step[0] for step in stood} <= {guess}
    assert abs(len(stood) / ROUNDS - want) < deviations(want)
    rest = np.maximum(P[0] - Q[0], 0)
    if want < 1:
        assert_follows([step[0] for step in steps if len(step) == 1], rest / rest.sum(), "replacements")


@pytest.mark.task("3.8.2")
def test_a_guess_that_cannot_be_never_stands(llm):
    sampler = llm.Sampler(SamplingParams(temperature=1.0, top_k=2))
    q = mx.array(Q[:1].astype(np.float32))
    steps = [
        llm.accept_with_draft_probs(logits_of(P[:2]), [4], q, sampler, START + 2 * i) for i in range(300)
    ]
    # Of the first row top-k leaves 4/7 and 3/7; q has 0.1 and 0.5 for these two.
    assert {tuple(step) for step in steps} == {(0,)}


@pytest.mark.task("3.8.2")
def test_coupled_guesses_are_drawn_with_the_same_key(llm):
    sampler = llm.Sampler(SamplingParams(temperature=1.0, seed=8))
    drafter = llm.Drafter(sampler)
    p, q = logits_of(P[:1]), logits_of(Q[:1])
    drawn = [(drafter.draft(q, START + i), sampler(p, START + i).item()) for i in range(ROUNDS)]
    assert {probs for (_, probs), _ in drawn} == {None}
    assert_follows([token for (token, _), _ in drawn], Q[0], "guesses")
    assert_follows([token for _, token in drawn], P[0], "tokens")
    agreed = sum(guess == token for (guess, _), token in drawn) / ROUNDS
    by_chance = float(P[0] @ Q[0])
    assert agreed > by_chance + deviations(by_chance), "no more often than independent draws"
    assert all(drafter.draft(p, START + i)[0] == sampler(p, START + i).item() for i in range(50))


@pytest.mark.task("3.8.2")
@pytest.mark.parametrize("settings", [{}, {"temperature": 0.7}])
def test_acceptance_rejects_shapes_that_do_not_fit(llm, settings):
    sampler = llm.Sampler(SamplingParams(**settings))
    logits, q = logits_of(P), mx.array(Q.astype(np.float32))
    for draft in ([], [0], [0, 1, 2]):
        with pytest.raises(ValueError):
            llm.accept(logits, draft, sampler, START)
        with pytest.raises(ValueError):
            llm.accept_with_draft_probs(logits, draft, q[: len(draft)], sampler, START)
    for probs in (q[:1], q[:, :4]):
        with pytest.raises(ValueError):
            llm.accept_with_draft_probs(logits, [0, 1], probs, sampler, START)


# A small model that speaks ahead


@pytest.mark.task("3.8.3")
def test_the_draft_model_says_what_it_would_say(llm):
    model, prompt = FakeModel(), list(b"once upon a time")
    draft = llm.DraftModelProposer(model, 5).propose(prompt)
    assert list(draft.token_ids) == model.answer_to(prompt, 5)
    assert draft.probs is None


@pytest.mark.task("3.8.3")
@pytest.mark.parametrize("stood", [0, 1, 2, 3])
def test_the_draft_model_computes_only_what_is_new(llm, stood):
    model, tokens = FakeModel(), list(b"the beginning")
    proposer = llm.DraftModelProposer(model, 3)
    for _ in range(4):
        guesses = list(proposer.propose(tokens, "a").token_ids)
        assert guesses == model.answer_to(tokens, 3)
        tokens += [*guesses[:stood], ord("!")]
        del model.calls[:]
    guesses = list(proposer.propose(tokens, "a").token_ids)
    assert guesses == model.answer_to(tokens, 3)
    # The third guess was never computed; where it stood it comes with the newest token.
    assert [call.length for call in model.calls] == [2 if stood == 3 else 1, 1, 1]


@pytest.mark.task("3.8.3")
def test_the_draft_model_may_be_asked_twice(llm):
    model, tokens = FakeModel(), list(b"the same")
    proposer = llm.DraftModelProposer(model, 4)
    first = proposer.propose(tokens, "a").token_ids
    assert proposer.propose(tokens, "a").token_ids == first
    assert list(proposer.propose(tokens[:5], "a").token_ids) == model.answer_to(tokens[:5], 4)


@pytest.mark.task("3.8.3")
def test_requests_have_draft_caches_of_their_own(llm):
    model = FakeModel()
    proposer = llm.DraftModelProposer(model, 2)
    texts = {"a": list(b"first text"), "b": list(b"second")}
    for _ in range(3):
        for name, tokens in texts.items():
            guesses = list(proposer.propose(tokens, name).token_ids)
            assert guesses == model.answer_to(tokens, 2), name
            tokens += guesses
    assert live_requests(model) == 2
    proposer.forget("a")
    proposer.forget("a")
    assert live_requests(model) == 1
    assert list(proposer.propose(texts["a"], "a").token_ids) == model.answer_to(texts["a"], 2)
    assert list(proposer.propose(texts["b"], "b").token_ids) == model.answer_to(texts["b"], 2)


@pytest.mark.task("3.8.3")
def test_a_long_text_is_drafted_for_in_the_same_way(llm):
    model, tokens = FakeModel(), list(b"0123456789" * 130)
    assert list(llm.DraftModelProposer(model, 2).propose(tokens).token_ids) == model.answer_to(tokens, 2)


@pytest.mark.task("3.8.3")
@pytest.mark.parametrize(("length", "want"), [(8, 3), (9, 2), (10, 1), (11, 0), (40, 0), (0, 0)])
def test_the_draft_model_stops_where_its_positions_end(llm, length, want):
    model = FakeModel(max_position_embeddings=10)
    draft = llm.DraftModelProposer(model, 3).propose([97] * length)
    assert len(draft.token_ids) == want
    assert all(call.offset + call.length <= 10 for call in model.calls)


@pytest.mark.task("3.8.3")
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
        logits = model(mx.array([[*tokens, *draft.token_ids[:i]]]), logits_to_keep=1)[:, -1]
        assert_close(row, mx.softmax(sampler.scores(logits), axis=-1)[0], F32, legend="[V]")
        assert row[draft.token_ids[i]].item() > 0
    coupled = llm.DraftModelProposer(model, 3).propose(tokens, "a", llm.Drafter(sampler))
    assert coupled.probs is None


@pytest.mark.task("3.8.3")
def test_the_draft_model_asks_for_the_position_of_each_guess(llm):
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


@pytest.mark.task("3.8.3")
def test_the_draft_model_rejects_what_cannot_work(llm):
    vocab = FakeModel().config.vocab_size
    assert llm.DraftModelProposer(FakeModel(), vocab_size=vocab).num_tokens == 4
    assert llm.DraftModelProposer(FakeModel(), vocab_size=vocab + 128).num_tokens == 4, "padding"
    for size in (vocab + 1024, vocab + 5000):
        with pytest.raises(UserError):
            llm.DraftModelProposer(FakeModel(), vocab_size=size)
    with pytest.raises(UserError):
        llm.DraftModelProposer(FakeModel(), 0)


# The loop


@pytest.mark.task("3.8.4")
def test_speculation_is_counted(llm):
    stats = llm.SpecDecodeStats()
    assert (stats.acceptance_rate, stats.mean_acceptance_length) == (None, None)
    for drafted, stood in [(2, 1), (0, 0), (4, 4), (3, 0), (4, 2)]:
        stats.observe(drafted, stood)
    assert stats.num_drafts == 4
    assert stats.num_draft_tokens == 13
    assert stats.num_accepted_tokens == 7
    assert stats.num_accepted_tokens_per_pos == [3, 2, 1, 1]
    assert stats.acceptance_rate == 7 / 13
    assert stats.mean_acceptance_length == 1 + 7 / 4
    for drafted, stood in [(1, 2), (3, -1)]:
        with pytest.raises(ValueError):
            stats.observe(drafted, stood)


class Whisperer:
    """Knows the answer and says some of it wrong."""

    def __init__(self, answer, num_prompt_tokens, num_tokens=4, right=0.7, seed=0):
        self.answer, self.start, self.num_tokens = answer, num_prompt_tokens, num_tokens
        self.right, self.rng = right, random.Random(seed)
        self.asked, self.forgotten = set(), []

    def propose(self, token_ids, request_id=None, sampler=None):
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


@pytest.mark.task("3.8.4")
@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("right", [0.0, 0.7, 1.0])
def test_speculation_changes_nothing_that_is_said(llm, settings, right):
    sampling = SamplingParams(**settings)
    for seed, prompt in enumerate(["tell me", "a", "the same again, and the same again"]):
        model = FakeModel()
        want = outcome(list(llm.stream_generate(model, TOKENIZER, prompt, sampling, prefill_step=8)))
        whisperer = Whisperer(list(want[2]), len(prompt), right=right, seed=seed)
        stats = llm.SpecDecodeStats()
        events = llm.speculative_generate(
            model, TOKENIZER, prompt, whisperer, sampling, prefill_step=8, stats=stats
        )
        assert outcome(list(events)) == want
        assert live_requests(model) == 0
        assert stats.num_accepted_tokens <= stats.num_draft_tokens
        assert sorted(whisperer.asked) == sorted(set(whisperer.forgotten) & whisperer.asked)


@pytest.mark.task("3.8.4")
@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("name", ["ngram", "draft model", "other draft model"])
def test_every_proposer_changes_nothing(llm, settings, name):
    sampling, model = SamplingParams(**settings), FakeModel()
    other = FakeModel({"nothing": [97]})
    proposer = {
        "ngram": llm.NgramProposer(),
        "draft model": llm.DraftModelProposer(model),
        "other draft model": llm.DraftModelProposer(other),
    }[name]
    for prompt in ("abcabcabc", "speak", "x"):
        want = outcome(list(llm.stream_generate(model, TOKENIZER, prompt, sampling)))
        assert outcome(list(llm.speculative_generate(model, TOKENIZER, prompt, proposer, sampling))) == want
    assert live_requests(model) == live_requests(other) == 0


@pytest.mark.task("3.8.4")
def test_right_guesses_save_passes(llm):
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


@pytest.mark.task("3.8.4")
def test_wrong_guesses_are_rewound(llm):
    model, answer = FakeModel(), [97, 98, 99, 100, 101]
    answering = FakeModel({"prompt": [*answer, EOS]})
    wrong = Whisperer([33] * 6, 6, num_tokens=2, right=1.0)
    events = list(llm.speculative_generate(answering, TOKENIZER, "prompt", wrong))
    # Scripted: one stored token out of place, and the model says "!" to the end.
    assert outcome(events)[2:] == (tuple(answer), "abcde", "stop")
    assert [call.offset for call in answering.calls] == [0, 6, 7, 8, 9, 10]
    assert model.calls == []


@pytest.mark.task("3.8.4")
@pytest.mark.parametrize("most", [6, 7, 8, 9, 10, 14])
def test_guesses_stay_within_max_seq_len(llm, most):
    model = FakeModel()
    want = outcome(list(llm.stream_generate(model, TOKENIZER, "prompt", max_seq_len=most)))
    del model.calls[:]
    whisperer = Whisperer(list(want[2]) + [97] * 9, 6, right=1.0)
    events = list(llm.speculative_generate(model, TOKENIZER, "prompt", whisperer, max_seq_len=most))
    assert outcome(events) == want
    assert max(call.offset + call.length for call in model.calls) <= most


@pytest.mark.task("3.8.4")
def test_guesses_beyond_max_tokens_are_not_computed(llm):
    model = FakeModel()
    whisperer = Whisperer(model.answer_to(b"prompt", 9), 6, right=1.0)
    list(llm.speculative_generate(model, TOKENIZER, "prompt", whisperer, SamplingParams(max_tokens=4)))
    assert [call.length for call in model.calls] == [6, 3]


@pytest.mark.task("3.8.4")
def test_a_closed_answer_gives_everything_back(llm):
    model, small = FakeModel(), FakeModel()
    proposer = llm.DraftModelProposer(small)
    events = llm.speculative_generate(model, TOKENIZER, "prompt", proposer)
    for _ in range(4):
        next(events)
    assert (live_requests(model), live_requests(small)) == (1, 1)
    events.close()
    assert (live_requests(model), live_requests(small)) == (0, 0)


@pytest.mark.task("3.8.4")
@pytest.mark.parametrize("config", [QWEN3, QWEN2], ids=lambda config: config.model_type)
@pytest.mark.parametrize("settings", [{}, {"temperature": 0.9, "top_p": 0.95, "seed": 3}])
def test_a_real_transformer_says_the_same(llm, config, settings):
    model, small = toy_model(llm, config), toy_model(llm, config, seed=1)
    sampling = SamplingParams(max_tokens=12, ignore_eos=True, **settings)
    for proposer in (llm.NgramProposer(1, 1), llm.DraftModelProposer(model), llm.DraftModelProposer(small)):
        want = outcome(list(llm.stream_generate(model, TOKENIZER, "abababab", sampling)))
        got = outcome(list(llm.speculative_generate(model, TOKENIZER, "abababab", proposer, sampling)))
        assert got == want


@pytest.mark.task("3.8.4")
@pytest.mark.parametrize("settings", [{}, {"temperature": 1.0, "top_p": 0.8, "seed": 7}])
def test_a_draft_model_that_thinks_alike_is_always_right(llm, settings):
    # With p = q every guess stands, whatever was drawn.
    model, stats = FakeModel(), llm.SpecDecodeStats()
    proposer = llm.DraftModelProposer(FakeModel(), 3)
    sampling = SamplingParams(max_tokens=13, **settings)
    events = llm.speculative_generate(
        model, TOKENIZER, "prompt", proposer, sampling, coupled=False, stats=stats
    )
    tokens, text, *_ = outcome(list(events))
    assert (len(tokens), len(text)) == (13, 13)
    assert [call.length for call in model.calls] == [6, 4, 4, 4]
    assert stats.acceptance_rate == 1


@pytest.mark.task("3.8.4")
def test_drawn_guesses_are_weighed_with_their_distribution(llm):
    # What the draft model prefers and the model does not must fall about as often as p and q differ.
    model, other = FakeModel(), FakeModel({"prompt": [97, 98, 99]})
    stats = llm.SpecDecodeStats()
    for seed in range(20):
        sampling = SamplingParams(temperature=1.0, seed=seed, max_tokens=3)
        proposer = llm.DraftModelProposer(other, 1)
        list(
            llm.speculative_generate(
                model, TOKENIZER, "prompt", proposer, sampling, coupled=False, stats=stats
            )
        )
    # The other model is sure of one letter of 26, and no letter is certain.
    assert stats.num_draft_tokens >= 20
    assert stats.acceptance_rate < 0.5
