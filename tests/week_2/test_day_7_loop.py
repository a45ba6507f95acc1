"""Day 2.7: the loop. Chunking may change when things happen, never what is said."""

import random

import pytest
from tests.helpers.fakes import FakeModel, live_requests
from tests.helpers.phases import TOKENIZER, UNCHUNKED, limited, run_all, text_of
from tests.helpers.toy import toy_model

from tiny_llm_lab.types import Prompt, SamplingParams, UserError


@pytest.mark.task("2.7.7")
@pytest.mark.parametrize("batch_size", [1, 3])
@pytest.mark.parametrize("step", [4, UNCHUNKED])
def test_chunked_prefill_answers_every_prompt_in_order(llm, batch_size, step):
    model = FakeModel()
    lengths = [(3, 9), (40, 2), (1, 1), (33, 5), (4, 12), (5, 3), (32, 2)]
    prompts = [limited(text_of(length, i), n) for i, (length, n) in enumerate(lengths)]
    done = run_all(llm, prompts, model, batch_size=batch_size, prefill_step=step)
    assert [completion.prompt_idx for completion in done] == list(range(7))
    for completion, prompt, (length, n) in zip(done, prompts, lengths, strict=True):
        assert list(completion.token_ids) == model.answer_to(prompt.content.encode(), n)
        assert completion.text == bytes(completion.token_ids).decode()
        assert (completion.num_prompt_tokens, completion.finish_reason) == (length, "length")
    assert live_requests(model) == 0


@pytest.mark.task("2.7.7")
def test_no_prompts_no_answers(llm):
    model = FakeModel()
    assert run_all(llm, [], model) == []
    assert model.calls == []


@pytest.mark.task("2.7.7")
def test_sampling_serves_prompts_that_bring_none(llm):
    own = SamplingParams(max_tokens=2)
    done = run_all(llm, ["abc", Prompt("def", own), [97]], FakeModel(), sampling=SamplingParams(max_tokens=5))
    assert [len(completion.token_ids) for completion in done] == [5, 2, 5]


@pytest.mark.task("2.7.7")
@pytest.mark.parametrize("step", [4, UNCHUNKED])
def test_bad_prompt_is_an_error_of_its_own(llm, step):
    model, good = FakeModel(), [text_of(12, i) for i in range(3)]
    prompts = [good[0], "", good[1], text_of(17), [], good[2]]
    done = run_all(
        llm, prompts, model, prefill_step=step, max_seq_len=16, sampling=SamplingParams(max_tokens=3)
    )
    assert [completion.finish_reason == "error" for completion in done] == [
        False,
        True,
        False,
        True,
        True,
        False,
    ]
    for completion in done:
        if completion.finish_reason == "error":
            assert (completion.token_ids, completion.text) == ((), "")
            assert completion.error
        else:
            assert completion.error is None
    got = [list(done[i].token_ids) for i in (0, 2, 5)]
    assert got == [model.answer_to(prompt.encode(), 3) for prompt in good]
    assert live_requests(model) == 0


@pytest.mark.task("2.7.7")
@pytest.mark.parametrize(
    "settings", [{"batch_size": 0}, {"prefill_step": 0}, {"max_seq_len": 0}, {"max_seq_len": 5000}]
)
def test_settings_out_of_range_are_rejected(llm, settings):
    with pytest.raises(UserError):
        run_all(llm, ["abc"], FakeModel(), **settings)


@pytest.mark.task("2.7.7")
def test_one_string_is_no_list_of_prompts(llm):
    with pytest.raises(UserError):
        run_all(llm, "abc", FakeModel())


@pytest.mark.task("2.7.7")
@pytest.mark.parametrize(("max_seq_len", "num_tokens"), [(9, 1), (10, 2), (14, 6)])
def test_rows_hold_max_seq_len_tokens_and_no_more(llm, max_seq_len, num_tokens):
    model = FakeModel()
    done = run_all(llm, [text_of(9), text_of(4)], model, prefill_step=4, max_seq_len=max_seq_len)
    assert [len(completion.token_ids) for completion in done] == [num_tokens, num_tokens + 5]
    assert list(done[0].token_ids) == model.answer_to(text_of(9).encode(), num_tokens)


GRID_LENGTHS = sorted({n for c in (7, 32, 128) for n in (1, c - 1, c, c + 1, 3 * c + 1)})


@pytest.fixture(scope="module")
def toy_answers(llm):
    """A model, prompts around the edges of every chunk size, and what the plain cached loop answers."""
    model = toy_model(llm)
    prompts = [Prompt(text_of(n, n), SamplingParams(max_tokens=4 + n % 5)) for n in GRID_LENGTHS]
    answers = []
    for prompt in prompts:
        loop = llm.simple_generate_with_kv_cache(
            model, TOKENIZER, prompt.content, max_tokens=prompt.sampling.max_tokens
        )
        answers.append(tuple(event.token_id for event in loop if event.token_id is not None))
    return model, prompts, answers


@pytest.mark.task("2.7.7")
@pytest.mark.parametrize("is_shuffled", [False, True], ids=["in_order", "shuffled"])
@pytest.mark.parametrize("batch_size", [1, 3, 8])
@pytest.mark.parametrize("step", [1, 7, 32, 128, UNCHUNKED])
def test_chunked_prefill_never_changes_the_answer(llm, toy_answers, step, batch_size, is_shuffled):
    model, prompts, answers = toy_answers
    order = list(range(len(prompts)))
    if is_shuffled:
        random.Random(step + batch_size).shuffle(order)
    done = run_all(llm, [prompts[i] for i in order], model, batch_size=batch_size, prefill_step=step)
    assert [completion.token_ids for completion in done] == [answers[i] for i in order]
