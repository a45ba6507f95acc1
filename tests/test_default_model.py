"""The shipped model: chunking, batching and order change nothing that it says, and what it says is right."""

import contextlib
import os
import random
from dataclasses import dataclass
from typing import Any

import pytest
from tests.helpers.devices import on_cpu

from tiny_llm_lab import load_checkpoint
from tiny_llm_lab.measure.corpus.recall import recall_questions, render_prompt
from tiny_llm_lab.runtime import native
from tiny_llm_lab.types import SamplingParams

UNCHUNKED = 999_999
SAMPLING = SamplingParams(max_tokens=16)


@dataclass(frozen=True)
class Shipped:
    """The default model, ready to answer."""

    llm: Any
    model: Any
    tokenizer: Any

    def questions(self, seed, count, context_tokens):
        return recall_questions(seed, count, context_tokens, self.tokenizer.encode)

    def answers(self, questions, **settings):
        prompts = [render_prompt(question.user) for question in questions]
        return self.llm.batch_generate(
            self.model, self.tokenizer, prompts, max_seq_len=640, sampling=SAMPLING, **settings
        )


@pytest.fixture(scope="module")
def shipped(llm):
    """On the C++ kernels, which take a fifth of the time, unless operators are asked for."""
    checkpoint, kernels = load_checkpoint("default"), os.environ[native.VARIABLE]
    with on_cpu("auto") if kernels == "off" else contextlib.nullcontext():
        model = llm.build_model(checkpoint)
    return Shipped(llm, model, checkpoint.tokenizer)


@pytest.fixture(scope="module")
def short_notes(shipped):
    """Questions about notes of four lengths, and what one pass at a time answers."""
    lengths = (64, 96, 129, 160)
    questions = [shipped.questions(seed, 1, length)[0] for seed, length in enumerate(lengths)]
    done = shipped.answers(questions, prefill_step=UNCHUNKED, batch_size=1)
    return questions, [completion.token_ids for completion in done]


@pytest.mark.parametrize("batch_size", [1, 3, 8])
@pytest.mark.parametrize("step", [1, 7, 32, 128, UNCHUNKED])
def test_chunked_prefill_never_changes_the_answer(shipped, short_notes, step, batch_size):
    questions, answers = short_notes
    order = list(range(len(questions)))
    random.Random(step + batch_size).shuffle(order)
    done = shipped.answers([questions[i] for i in order], prefill_step=step, batch_size=batch_size)
    assert [completion.token_ids for completion in done] == [answers[i] for i in order]


@pytest.mark.parametrize("name", ["ngram", "draft model"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_speculation_never_changes_the_answer(shipped, short_notes, name, temperature):
    llm, model, tokenizer = shipped.llm, shipped.model, shipped.tokenizer
    sampling = SamplingParams(max_tokens=24, temperature=temperature, seed=3, ignore_eos=True)
    proposer = llm.NgramProposer() if name == "ngram" else llm.DraftModelProposer(model)
    for question in short_notes[0][:2]:
        prompt = render_prompt(question.user)
        want = list(llm.stream_generate(model, tokenizer, prompt, sampling))[-1].completion
        got = list(llm.speculative_generate(model, tokenizer, prompt, proposer, sampling))[-1].completion
        assert got.token_ids == want.token_ids


@pytest.fixture(scope="module")
def long_notes(shipped):
    """Six questions about notes of 512 tokens, and their answers by chunk size."""
    questions = shipped.questions(seed=2026, count=6, context_tokens=512)
    return questions, shipped.answers(questions, prefill_step=UNCHUNKED, batch_size=6)


STEPS = [pytest.param(7, marks=pytest.mark.long), 32, pytest.param(128, marks=pytest.mark.long)]


@pytest.mark.parametrize("step", STEPS)
def test_chunked_prefill_never_changes_the_recall(shipped, long_notes, step):
    questions, unchunked = long_notes
    done = shipped.answers(questions, prefill_step=step, batch_size=6)
    assert [completion.text for completion in done] == [completion.text for completion in unchunked]


def test_short_notes_are_recalled(shipped):
    questions = shipped.questions(seed=2026, count=6, context_tokens=128)
    assert_recalled(questions, shipped.answers(questions, prefill_step=32, batch_size=6))


def test_long_notes_are_recalled(long_notes):
    assert_recalled(*long_notes)


def assert_recalled(questions, done):
    pairs = zip(questions, done, strict=True)
    wrong = [
        (question.answer, completion.text)
        for question, completion in pairs
        if completion.text != question.answer
    ]
    assert len(wrong) <= 1, wrong
