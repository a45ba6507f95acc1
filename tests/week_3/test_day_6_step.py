"""Day 3.6: one step by itself, and a request's tokens on their way to the user."""

from dataclasses import replace

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten
from tests.helpers.phases import arrival_of
from tests.helpers.toy import ByteTokenizer, random_tokens

from tiny_llm_lab.types import PrefillEvent, SamplingParams, StepPlan, TokenEvent


def a_request(llm, prompt, sampling, max_seq_len=64):
    ticks = iter(range(10, 100))
    tokens = ByteTokenizer().encode(prompt) if isinstance(prompt, str) else prompt
    sequence = llm.TokenSequence("r", tokens, 2, 3.0, "batch")
    arrival = arrival_of(tokens, sampling, 4, 3.0)
    answer = llm.Answer(ByteTokenizer(), arrival, tokens, max_seq_len, lambda: float(next(ticks)))
    return llm.RequestState(sequence, answer)


def whole(step):
    """The slices of a step without states; their blocks may be any sequence."""
    return [(list(blocks), computed, new) for blocks, computed, new, *_ in step.slices]


def accepted(request, tokens):
    request.accept(tokens)
    return request.output()


@pytest.mark.task("3.6.1")
def test_tokens_reach_the_user_until_the_answer_ends(llm):
    request = a_request(llm, "ab", SamplingParams(max_tokens=3))
    assert not request.has_output
    request.accept([99])
    assert request.has_output
    output = request.output()
    assert not request.has_output
    assert (output.request_id, output.token_ids, output.text, output.completion) == ("r", (99,), "c", None)
    assert [type(event) for event in output.events] == [PrefillEvent, TokenEvent]
    assert request.answer.last_token_s == 11.0, "when the newest token came"
    output = accepted(request, [100, 101, 102])
    assert (output.token_ids, output.text) == ((100, 101), "de"), "max_tokens is 3: the rest is dropped"
    assert output.completion.finish_reason == "length"
    assert output.completion.timing.arrival_s == 3.0
    assert request.sequence.num_tokens == 2, "the scheduler's commit counts tokens, not this"


@pytest.mark.task("3.6.1")
def test_chunks_are_reported_once(llm):
    request = a_request(llm, [97] * 9, SamplingParams(max_tokens=3))
    told = []
    for num_computed in (4, 4, 0, 4, 8, 9):  # 0: preempted, and computed again
        request.sequence.num_computed_tokens = num_computed
        request.committed()
        told += request.answer.take_events()
    assert [event.num_computed_tokens for event in told] == [4, 8, 9]
    assert {event.num_prompt_tokens for event in told} == {9}
    assert not request.has_output, "a chunk is no news to a user who waits for text"


@pytest.mark.task("3.6.1")
def test_an_answer_ends_where_no_token_can_be_stored(llm):
    request = a_request(llm, "abc", SamplingParams(), max_seq_len=4)
    assert accepted(request, [100]).completion is None, "3 tokens are stored: there is room for this one"
    assert accepted(request, [101]).completion.finish_reason == "length", "4 are stored: it has no place"
    request = a_request(llm, "abc", SamplingParams(), max_seq_len=5)
    output = accepted(request, [100, 101, 102, 103])
    assert output.token_ids == (100, 101, 102), "3 are stored, then 4, then 5, and the next has no place"
    assert output.completion.finish_reason == "length"


@pytest.mark.task("3.6.2")
def test_a_chunk_that_samples_nothing_is_computed_when_it_is_read(llm, model, monkeypatch):
    evaluated = []

    def noting(evaluate):
        def wrapped(*arrays):
            evaluated.extend(array for _, array in tree_flatten(arrays))
            return evaluate(*arrays)

        return wrapped

    request = a_request(llm, [97] * 9, SamplingParams())
    request.sequence.block_ids = [0, 1, 2]
    cache = model.create_paged_kv_cache(3, 4)
    for name in ("eval", "async_eval"):
        monkeypatch.setattr(mx, name, noting(getattr(mx, name)))
    assert llm.launch(model, cache, StepPlan({"r": 4}), [request], 0.0).read() == {}
    left = [i for i, pool in enumerate(cache.pools) if not any(pool is each for each in evaluated)]
    assert not left, f"nobody asked MLX to compute the pools {left}: their graph grows with every chunk"


@pytest.mark.parametrize(
    "logprobs",
    [
        pytest.param(None, marks=pytest.mark.task("3.6.2")),
        pytest.param(2, marks=pytest.mark.task("3.7.1")),
    ],
)
def test_a_step_by_itself(llm, model, logprobs):
    """A decode, a whole prompt and a chunk in one pass: who draws, and what."""
    greedy = SamplingParams(ignore_eos=True)
    drawn = SamplingParams(temperature=1.0, seed=5, logprobs=logprobs)
    prompts = {
        "decode": (3, replace(drawn, seed=6)),
        "whole": (7, drawn),
        "chunk": (9, greedy),
    }
    requests, wanted = [], {}
    for i, (name, (length, sampling)) in enumerate(prompts.items()):
        tokens = random_tokens(1 + i, length).tolist()
        request = a_request(llm, tokens, sampling)
        request.sequence.request_id, request.sequence.block_ids = name, [3 * i, 3 * i + 1, 3 * i + 2]
        requests.append(request)
        logits = model(mx.array([tokens]))[:, -1]
        wanted[name] = (llm.Sampler(sampling)(logits, length).tolist(), logits)
    cache = model.create_paged_kv_cache(9, 4)
    first = llm.launch(model, cache, StepPlan({"decode": 2}), requests[:1], 1.5)
    assert first.start_s == 1.5 and whole(first) == [([0, 1, 2], 0, 2)]
    assert first.read() == {} and first.sampled.tolist() == [], "a token is not computed yet"
    requests[0].sequence.advance(2)
    step = llm.launch(model, cache, StepPlan({"decode": 1, "whole": 7, "chunk": 4}), requests, 2.0)
    assert whole(step) == [([0, 1, 2], 2, 1), ([3, 4, 5], 0, 7), ([6, 7, 8], 0, 4)]
    got = step.read()
    assert got == {requests[0]: wanted["decode"][0], requests[1]: wanted["whole"][0]}
    if logprobs is None:
        return
    assert list(step.scores) == requests[:2], "who asked"
    for request, (tokens, logits) in zip(requests[:2], wanted.values(), strict=False):
        want = (logits - mx.logsumexp(logits, axis=-1, keepdims=True))[0, tokens[0]]
        assert step.scores[request][0].item() == pytest.approx(want.item(), abs=1e-4)
