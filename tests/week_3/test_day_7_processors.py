"""Day 3.7: what changes the logits of one request, and never those of another."""

from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest
from tests.helpers.serving import make_engine
from tests.helpers.tolerance import as_float64, assert_close
from tests.helpers.toy import EOS, SECOND_EOS, VOCAB, ByteTokenizer, random_array, random_tokens

from tiny_llm_lab.types import (
    UNCHANGED,
    Arrival,
    Prompt,
    RowChanges,
    SamplingParams,
    Wanted,
)

pytestmark = pytest.mark.task("3.7.3")
PROMPT = random_tokens(3, 40).tolist()
LONG = SamplingParams(max_tokens=24, ignore_eos=True)


CHANGED = {
    "repetition": {"repetition_penalty": 1.4},
    "presence and frequency": {
        "presence_penalty": 1.5,
        "frequency_penalty": 0.7,
        "temperature": 0.8,
        "seed": 4,
    },
    "bias": {"logit_bias": {5: 60.0, 7: -100.0}, "temperature": 1.0},
    "min_tokens": {"min_tokens": 20, "ignore_eos": False, "logit_bias": {EOS: 100, SECOND_EOS: 99}},
    "all": {"repetition_penalty": 0.8, "frequency_penalty": -0.4, "logit_bias": {9: 2.0}, "min_tokens": 3},
}


class Odd:
    """Bars tokens of one parity, which the text so far decides."""

    def __call__(self, logits, prompt, answer):
        parity = (sum(answer) + len(prompt)) % 2
        return mx.where(mx.arange(len(logits)) % 2 == parity, -mx.inf, logits)


def changed_by_hand(sampling, logits, prompt, answer, ends=()):
    """The same in float64, a token at a time."""
    row = np.array(logits, np.float64)
    for token in ends if len(answer) < sampling.min_tokens else ():
        row[token] = -np.inf
    for token, bias in sampling.logit_bias_pairs:
        row[token] += bias
    for token in {*prompt, *answer}:
        row[token] *= sampling.repetition_penalty if row[token] <= 0 else 1 / sampling.repetition_penalty
    for token in set(answer):
        row[token] -= sampling.presence_penalty + sampling.frequency_penalty * answer.count(token)
    return row


# One row


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
@pytest.mark.parametrize("name", CHANGED)
def test_a_row_as_by_hand(llm, name, dtype):
    sampling = SamplingParams(**CHANGED[name])
    logits = random_array(1, VOCAB, dtype=dtype) * 5
    before = as_float64(logits)
    prompt, answer = [3, 3, 9, 200], [9, 9, 9, 17, 5]
    found = llm.Penalties(sampling, prompt, {EOS, SECOND_EOS})(logits, prompt, answer)
    assert found.shape == (VOCAB,)
    want = changed_by_hand(sampling, before, prompt, answer, (EOS, SECOND_EOS))
    likely = np.isfinite(want)
    assert_close(as_float64(found)[likely], want[likely])
    assert not as_float64(mx.softmax(found))[~likely].any()
    assert np.array_equal(as_float64(logits), before), "the logits given stay as they are: others read them"


def test_the_end_is_the_last_resort(llm):
    barred = llm.Penalties(SamplingParams(min_tokens=2), [1], {EOS})(mx.zeros(VOCAB), [1], [])
    only_end = mx.where(mx.arange(VOCAB) == EOS, barred, -mx.inf)
    assert mx.argmax(only_end).item() == EOS
    assert llm.Sampler(SamplingParams(temperature=1.0))(only_end[None], 1).item() == EOS


def test_an_answer_of_exactly_the_fewest_tokens(llm, model):
    sampling = SamplingParams(min_tokens=4, max_tokens=9, logit_bias={EOS: 100})
    done = make_engine(llm, model).generate([Prompt(PROMPT, sampling), Prompt([EOS], sampling)])
    assert [(len(each.token_ids), each.finish_reason) for each in done] == [(4, "stop")] * 2


def test_ends_outside_the_logits_are_left_alone(llm):
    row = llm.Penalties(SamplingParams(min_tokens=2), [1], {EOS, 10**6})(mx.zeros(VOCAB), [1], [])
    assert mx.sum(row < 0).item() == 1


def as_dict(changes):
    """What is changed, {token: [bias, factor, loss]}, without what changes nothing."""
    rows = zip(changes.edits.tokens.tolist(), changes.edits.changes.tolist(), strict=True)
    return {token: change for token, change in rows if change != [0.0, 1.0, 0.0]}


def changed_logits(penalties, answer):
    return as_dict(penalties.changes(answer, VOCAB))


@pytest.mark.parametrize("name", CHANGED)
def test_changes_are_those_of_the_answer_whatever_was_counted_before(llm, name):
    sampling, prompt, rng = SamplingParams(**CHANGED[name]), [3, 3, 9, 200], np.random.default_rng(1)
    counting, answer = llm.Penalties(sampling, prompt, {EOS}), []
    for step in range(60):
        # A step with a draft of three tokens, of which none, some or all are kept, and two without.
        draft = rng.integers(0, 20, size=(3, 0, 0)[step % 3]).tolist()
        for i in range(len(draft) + 1):
            fresh = llm.Penalties(sampling, prompt, {EOS})
            text = [*answer, *draft[:i]] if i else answer  # which grows, so `counting` must not keep it
            want = changed_logits(fresh, text)
            assert changed_logits(counting, text) == want, f"after {answer} and {draft[:i]}"
        answer += [*draft[: rng.integers(0, 4)], int(rng.integers(0, 20))]
    row = random_array(2, VOCAB)
    assert changed_logits(counting, []) == changed_logits(fresh, []), "a shorter answer takes back the rest"
    assert_close(counting(row, prompt, [5, 5]), fresh(row, prompt, [5, 5]), what="the logits after it")


def test_changes_of_a_step_stay_what_they_were_when_the_next_is_made(llm):
    penalties = llm.Penalties(SamplingParams(presence_penalty=1.0), [1])
    edits = penalties.changes([4], VOCAB).edits
    before = edits.tokens.tolist(), edits.changes.tolist()
    penalties.changes([4, 5, 4], VOCAB)
    assert (edits.tokens.tolist(), edits.changes.tolist()) == before


class Recording:
    """Operators that draw token 7 everywhere, and remember what they were told."""

    def __init__(self):
        self.draws = []

    def draw(self, logits, rows):
        self.draws.append(rows)
        return mx.full((len(rows),), 7, mx.uint32)

    def argmax(self, x):
        return mx.argmax(x, axis=-1)


def state_of(llm, ops, processors=(), **sampling):
    sequence = llm.TokenSequence("r", PROMPT)
    sequence.advance(len(PROMPT), [9])
    sequence.spec_token_ids = [5, 6]
    arrival = Arrival(0, Prompt(PROMPT, SamplingParams(**sampling)), 0.0)
    answer = llm.Answer(ByteTokenizer(), arrival, PROMPT, 64)
    return llm.RequestState(sequence, answer, ops, processors)


def test_operators_are_told_what_changes_in_each_row(llm):
    state = state_of(llm, Recording(), presence_penalty=1.0)
    assert not state.has_own_changes
    changes = state.changes(3, VOCAB)
    for i, each in enumerate(changes):
        alone = llm.Penalties(state.sampling, PROMPT)
        assert as_dict(each) == changed_logits(alone, [9, *[5, 6][:i]]), f"row {i}"
    drawn = llm.sample_rows(mx.zeros((3, VOCAB)), [(state.sampler, 41, 3)], changes)
    assert drawn.tolist() == [7, 7, 7], "greedy rows are drawn by the operator too if they change"
    (rows,) = state.sampler.ops.draws
    assert [row.changes for row in rows] == changes
    assert [row.key for row in rows] == [state.sampler.key(41 + i) for i in range(3)]


@pytest.mark.parametrize(
    ("ops", "processors", "own"), [(False, (), True), (True, (Odd(),), True), (True, (), False)]
)
def test_a_row_is_changed_once(llm, ops, processors, own):
    state = state_of(llm, Recording() if ops else None, processors, frequency_penalty=2.0)
    assert state.has_own_changes == own, "for processors that cannot say what they change, and without ops"
    unchanged = [each == UNCHANGED for each in state.changes(2, VOCAB)]
    assert unchanged == [own, own], "what `process` has changed, operators leave alone"


# In the engine


def alone(llm, model, prompt):
    """The answer of a loop that knows nothing of steps: one forward pass over the whole text a token."""
    sampler = llm.Sampler(prompt.sampling)
    ends = llm.Answer(ByteTokenizer(), Arrival(0, prompt, 0.0), prompt.content, 1000).end_token_ids
    own = [llm.Penalties(prompt.sampling, prompt.content, ends)] if prompt.sampling.changes_logits else []
    tokens = []
    while len(tokens) < prompt.sampling.max_tokens:
        text = [*prompt.content, *tokens]
        row = model(mx.array([text]), wanted=Wanted(last=1))[0, -1]
        for processor in (*own, *prompt.processors):
            row = processor(row, prompt.content, tokens)
        token = sampler(row[None], len(text)).item()
        if token in ends:
            break
        tokens.append(token)
    return tuple(tokens)


def test_prompts_of_generate_bring_processors(llm, model):
    prompts = [Prompt(PROMPT, LONG, processors=(Odd(),)), Prompt(PROMPT, LONG)]
    odd, plain = make_engine(llm, model).generate(prompts)
    assert plain.token_ids == alone(llm, model, prompts[1])
    assert odd.token_ids == alone(llm, model, prompts[0]) != plain.token_ids


class Halved:
    """A form as a grammar is one: half of the tokens, by the answer so far; asked behind an end it raises."""

    def __init__(self, is_operator, ends=()):
        self.ends = set(ends)
        if is_operator:
            self.changes = self._changes

    def __call__(self, logits, prompt, answer):
        return mx.where(mx.array(self._allowed(answer, len(logits))), logits, -mx.inf)

    def _changes(self, answer, vocab_size):
        bits = np.packbits(self._allowed(answer, 32 * -(-vocab_size // 32)), bitorder="little")
        return RowChanges(allowed=bits.view(np.uint32))

    def _allowed(self, answer, num):
        assert not self.ends & set(answer), "asked what follows the end"
        return np.arange(num) % 2 == sum(answer) % 2


class Launches:
    """A model that counts its passes; `early`: how many began while a step waited to be read."""

    def __init__(self, model):
        self.model, self.num_calls = model, 0

    def __getattr__(self, name):
        return getattr(self.model, name)

    def __call__(self, *args, **kwargs):
        self.num_calls += 1
        return self.model(*args, **kwargs)

    def hidden(self, *args, **kwargs):
        self.num_calls += 1
        return self.model.hidden(*args, **kwargs)


BESIDE = {
    "penalty": ({"repetition_penalty": 1.4, "presence_penalty": 0.5}, ()),
    "bias": ({"logit_bias": {9: 5.0, 11: -9.0}, "temperature": 1.0, "seed": 3}, ()),
    "min_tokens": ({"min_tokens": 6, "ignore_eos": False, "logit_bias": {EOS: 9.0}}, ()),
    "form": ({"logprobs": 2}, (Halved(True),)),
    "array form": ({"logprobs": 0, "temperature": 0.7}, (Halved(False),)),
    "scored prompt": ({"prompt_logprobs": 1, "frequency_penalty": 0.9}, ()),
}


def beside_others(llm, model, name, is_ahead):
    """Three plain requests and one with processors: the outputs, and passes begun after each step."""
    counted = Launches(model)
    engine = make_engine(llm, counted, async_scheduling=is_ahead)
    plain = SamplingParams(max_tokens=12, ignore_eos=True, logprobs=1)
    for i in range(3):
        engine.add(str(i), random_tokens(i, 8).tolist(), replace(plain, temperature=i / 2, seed=i))
    fields, processors = BESIDE[name]
    sampling = replace(SamplingParams(max_tokens=12, ignore_eos=True), **fields)
    engine.add("changed", random_tokens(9, 8).tolist(), sampling, processors=processors)
    found, calls = {}, []
    while engine.has_requests:
        for output in engine.step():
            found.setdefault(output.request_id, []).append((output.token_ids, output.text, output.logprobs))
        calls.append(counted.num_calls)
    return found, calls


@pytest.mark.parametrize("name", BESIDE)
def test_one_request_with_processors_does_not_end_steps_ahead_for_the_others(llm, model, name):
    wanted, in_turn = beside_others(llm, model, name, False)
    found, calls = beside_others(llm, model, name, True)
    assert found == wanted, "the same to the bit, logprobs as well"
    assert in_turn == list(range(1, 13))
    if name != "min_tokens":  # there an answer may end by surprise
        assert calls == [*range(2, 13), 12], "every step but the last begins before the one in front is read"


@pytest.mark.parametrize("is_operator", [True, False])
@pytest.mark.parametrize("how", ["end token", "stop string", "abort"])
def test_a_form_that_ends_with_a_step_under_way_is_not_asked_again(llm, model, how, is_operator):
    engine = make_engine(llm, model, async_scheduling=True)
    engine.add("a", [97, 98], LONG)
    free = SamplingParams(max_tokens=24, ignore_eos=True)
    engine.add("b", [99, 98], free, processors=(Halved(is_operator),))
    told = {"a": [], "b": []}
    while engine.has_requests:
        for output in engine.step():
            told[output.request_id] += output.token_ids
    last = told["b"][4]
    ends = {"end token": {"stop_token_ids": (last,)}, "stop string": {"stop": (chr(last),)}, "abort": {}}[how]
    engine.add("a", [97, 98], LONG)
    engine.add("b", [99, 98], replace(free, **ends), processors=(Halved(is_operator, ends and [last]),))
    found = {"a": [], "b": []}
    for step in range(99):
        if how == "abort" and step == 5:
            engine.abort("b")
        for output in engine.step():
            found[output.request_id] += output.token_ids
    first = told["b"].index(last) + 1 if how != "abort" else 5
    assert found["b"] in (told["b"][:first], told["b"][: first - 1]) and found["a"] == told["a"]
