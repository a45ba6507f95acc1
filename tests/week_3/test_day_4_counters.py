"""Day 3.4: two counters, and the steps that follow from them."""

import pytest
from tests.helpers.scheduling import request_of

from tiny_llm_lab.types import UserError

pytestmark = pytest.mark.task("3.4.1")


@pytest.mark.parametrize(
    ("prompt_len", "threshold", "budget", "want"),
    [
        (4096, 512, 512, 8),
        (4097, 512, 512, 9),
        (4096, 0, 8192, 1),
        (512, 1024, 256, 2),
        (1, 0, 1, 1),
        (5000, 0, 2048, 3),
    ],
)
def test_num_prefill_steps(llm, prompt_len, threshold, budget, want):
    assert llm.num_prefill_steps(prompt_len, threshold, budget) == want


@pytest.mark.parametrize(
    ("prompt_len", "threshold", "budget"), [(10, 0, 0), (10, 0, -1), (10, -1, 8), (0, 0, 8), (-3, 0, 8)]
)
def test_steps_of_nothing_are_refused(llm, prompt_len, threshold, budget):
    with pytest.raises(UserError):
        llm.num_prefill_steps(prompt_len, threshold, budget)


@pytest.mark.parametrize(
    ("missing", "threshold", "budget", "want"),
    [
        (100, 0, 2048, 100),
        (100, 32, 2048, 32),
        (31, 32, 2048, 31),
        (100, 32, 20, 20),
        (100, 32, 0, 0),
        (100, 0, -5, 0),
    ],
)
def test_clamp_new_tokens(llm, missing, threshold, budget, want):
    assert llm.clamp_new_tokens(missing, threshold, budget) == want


def test_num_computed_tokens_chases_num_tokens(llm):
    request = request_of(llm, 10)
    assert (request.num_tokens, request.num_computed_tokens) == (10, 0)
    assert [request.needs_sample(n) for n in (1, 9, 10)] == [False, False, True]
    request.advance(4)
    assert request.num_computed_tokens == 4 and not (request.is_decoding or request_of(llm, 1).is_decoding)
    assert [request.needs_sample(n) for n in (5, 6)] == [False, True]
    request.advance(6, [7])
    assert (request.num_tokens, request.num_computed_tokens) == (11, 10), "the new token is not computed yet"
    assert request.is_decoding and request.needs_sample(1)
    request.advance(1, [8])
    assert request.output_token_ids == [7, 8]
    assert request.token_ids == [*range(100, 110), 7, 8]


@pytest.mark.parametrize(
    ("sampled", "num_computed"), [([9], 5), ([1, 9], 6), ([1, 2, 9], 7), ([1, 2, 3, 9], 8), ([1, 2], 6)]
)
def test_what_was_computed_of_a_rejected_draft_does_not_count(llm, sampled, num_computed):
    request = request_of(llm, 5, output_token_ids=[0], num_computed_tokens=5, spec_token_ids=[1, 2, 3])
    assert (request.num_tokens, request.num_tokens_with_spec) == (6, 9)
    assert request.needs_sample(4), "1 known token and 3 of a draft: the known ones are all computed then"
    request.advance(4, sampled)
    assert request.output_token_ids == [0, *sampled]
    assert request.num_computed_tokens == request.num_tokens - 1 == num_computed + 1
    assert request.spec_token_ids == []


@pytest.mark.parametrize(
    ("num_new", "sampled"), [(4, [9]), (5, []), (5, [1, 9]), (6, [2, 9]), (6, [1, 2, 9]), (7, [2, 1, 9])]
)
def test_tokens_that_cannot_have_been_sampled(llm, num_new, sampled):
    request = request_of(llm, 5, spec_token_ids=[1, 2])
    with pytest.raises(ValueError):
        request.advance(num_new, sampled)
    assert (request.num_computed_tokens, request.output_token_ids) == (0, [])


def test_tokens_between(llm):
    request = request_of(llm, 4, output_token_ids=[7, 8], spec_token_ids=[9])
    whole = [100, 101, 102, 103, 7, 8, 9]
    for start in range(8):
        for end in range(start, 8):
            assert request.tokens_between(start, end) == whole[start:end], (start, end)
    for start, end in [(-1, 2), (3, 2), (0, 8)]:
        with pytest.raises(ValueError):
            request.tokens_between(start, end)
