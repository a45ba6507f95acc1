"""Day 2.6: one decode step of several requests."""

import mlx.core as mx
import pytest
from tests.helpers.fakes import FakeModel, prefill_by_hand
from tests.helpers.phases import arrival_of
from tests.helpers.toy import ByteTokenizer

from tiny_llm_lab.types import SamplingParams, Wanted

TOKENIZER = ByteTokenizer()


@pytest.mark.task("2.6.3")
def test_a_decode_step_is_one_forward_for_all(llm):
    model, prompts = FakeModel(), ["abc", "a", "a long prompt"]
    requests = [llm.Request(model, TOKENIZER, prompt) for prompt in prompts]
    kv_cache = [llm.BatchingKvCache(3) for _ in range(model.config.num_hidden_layers)]
    for request in requests:
        prefill_by_hand(model, request)
        for whole, layer in zip(kv_cache, request.kv_cache, strict=True):
            whole.add_request(layer)
    tokens = [request.next_token for request in requests]
    del model.calls[:]
    step = llm.DecodeStep.launch(model, kv_cache, requests)
    [call] = model.calls
    assert call.tokens == [[token] for token in tokens]
    assert (call.offset, call.last) == ([3, 1, 13], 1)
    wanted = [model.answer_to(prompt.encode(), 2)[1] for prompt in prompts]
    del requests[1:]
    assert step.read() == step.read() == wanted
    assert len(step.requests) == 3, "its requests are a copy"
    assert [request.offset for request in step.requests] == [3, 1, 13], "a step records nothing"


@pytest.mark.task("2.6.3")
def test_a_decode_step_draws_for_the_position_of_the_new_token(llm):
    model, prompt = FakeModel(), [97, 98, 99]
    for seed in range(8):
        sampling = SamplingParams(temperature=2.0, seed=seed)
        request = llm.Request(model, TOKENIZER, arrival_of(prompt, sampling))
        prefill_by_hand(model, request)
        logits = model(mx.array([[*prompt, *request.answer.token_ids]]), wanted=Wanted(last=1))[:, -1]
        got = llm.DecodeStep.launch(model, request.kv_cache, [request]).read()
        at = {position: request.sample(logits, position).tolist() for position in (3, 4, 5)}
        assert got == at[4], (
            f"seed {seed}: 3 tokens of the prompt and 1 of the answer are known, so the new token is at "
            f"position 4: got {got}; the sampler draws, by position, {at}"
        )


@pytest.mark.task("2.6.3")
def test_every_row_of_a_decode_step_is_drawn_by_its_own_sampler(llm):
    def drawn(seeds):
        model = FakeModel()
        requests = [
            llm.Request(model, TOKENIZER, arrival_of("abc", SamplingParams(temperature=2.0, seed=seed)))
            for seed in seeds
        ]
        kv_cache = [llm.BatchingKvCache(len(seeds)) for _ in range(model.config.num_hidden_layers)]
        for request in requests:
            prefill_by_hand(model, request)
            request.answer.token_ids[-1] = 97  # the same past for all
            for whole, layer in zip(kv_cache, request.kv_cache, strict=True):
                whole.add_request(layer)
        return llm.DecodeStep.launch(model, kv_cache, requests).read()

    alone = [drawn([seed])[0] for seed in range(6)]
    assert drawn(range(6)) == alone and len(set(alone)) > 2
